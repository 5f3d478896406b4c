-- The special script: decides the most common kind of charge. Such a charge is the only charge of its group, has an
-- exact cost of at least 1, and is counted by one token bucket that starts full. The general script (`main.lua`)
-- decides all other charges, including charges whose stored value this script does not expect.
--
-- Mirrors `TokenBucket::weigh` and `commit` for times in whole microseconds, like `bucket.lua`, which
-- describes the numbers.
--
-- KEYS     the charged keys, without duplicates.
-- ARGV[1]  the charges in order, as runs of consecutive keys. Fields of each run, with their sizes in bytes:
--            2        index of the first key in KEYS
--            2        number of keys
--            1        index of the parameters in ARGV, minus one
--            7        cost of each charge
-- ARGV[2…] the sets of parameters in use. Each set consists of ticks, whole, part, burst, the time of a full burst as whole
--          and part, and the smallest implausible time owed (7 each); then the head of a value with these parameters.
--
-- Reply    one string: the store's time in microseconds (7), then for each charge either the byte 255, if nothing was done and the
--          general script must decide, or
--            1        status: 0 admitted, 1 refused
--            1        the bit of the limit that refuses; equal to the status, because there is one limit
--            13       the cells after the charge
--
-- Value    as in `main.lua`, so nodes with and without this script can share keys. When a key is used
--          again, its value is *marked*: the kind of the limit, 1, is encoded as the two bytes 204 1, which represent the same
--          number in MessagePack. `main.lua` accepts marked values and writes them without the mark.
-- Expiry   of an unmarked value: as in `main.lua`. The expiry of a marked value is a function of its cells: the end of the
--          10-second interval in which the state becomes unused, plus ten seconds and the margin. While this interval stays the
--          same, only the cells are written, which costs half as much as setting an expiry.
--
-- Speed: no closures, no tables for parameters, and a refusal costs no more than reading the value. The offset for
-- SETRANGE is a string, because Redis 7 formats a number slowly. No string is built for `values`, because Lua hashes
-- every new string. Together these two measures save 14 % of the server's CPU time for an admitted charge on Redis 7.0,
-- in calls of 100 charges. On Valkey 9, these measures save nothing.

local keys, arguments, call = KEYS, ARGV, redis.call
local read, pack, sub, floor = struct.unpack, struct.pack, string.sub, math.floor
local ADMITTED, REFUSED, GENERAL = '\0\0', '\1\1', '\255'
-- As in `main.lua`.
local MARGIN = 4

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local values = call('MGET', unpack(keys))
local reply, replies = { pack('<I7', now) }, 1

-- The current parameters, the position of the cells in a marked value as a string, and the last expiry, in quarters of a second
-- and as a string.
local current, ticks, whole, part, burst, top_whole, top_part, max_plausible, head, marked, offset, format, marked_format, size
local expiry_steps, expiry
-- The cells by key index, for marked values that this call has written with the current parameters.
local charged = {}

local runs, position = arguments[1], 1
while position <= #runs do
  local first, count, index, cost
  first, count, index, cost, position = read('<I2I2BI7', runs, position)
  if index ~= current then
    local parameters = arguments[index + 1]
    current = index
    for key, cells in pairs(charged) do values[key], charged[key] = marked .. cells, nil end
    ticks, whole, part, burst, top_whole, top_part, max_plausible = read('<I7I7I7I7I7I7I7', parameters)
    head = sub(parameters, 50)
    size = #head + 13
    marked = pack('<BI2', 2, #head - 2) .. sub(head, 4, 5) .. '\204' .. sub(head, 6)
    offset = tostring(#marked)
    format, marked_format = '<c' .. #head .. 'I7I6', '<c' .. #marked .. 'I7I6'
  end
  -- The time that the cost takes to refill, and the longest time that may be owed before the charge.
  local cost_whole, cost_part, room_whole, room_part = 0, 0, -1, 0
  if cost <= burst then
    cost_whole, cost_part = cost * whole, cost * part
    if cost_part >= ticks then
      local carry = floor(cost_part / ticks)
      cost_whole, cost_part = cost_whole + carry, cost_part - carry * ticks
    end
    room_whole, room_part = top_whole - cost_whole, top_part - cost_part
    if room_part < 0 then room_whole, room_part = room_whole - 1, room_part + ticks end
  end
  for key = first, first + count - 1 do
    local value, found, owed, rest, cell = values[key], head, 0, 0, nil
    local earlier = charged[key]
    if value then
      if earlier then
        owed, rest = read('<I7I6', earlier)
        cell = floor(owed / 10000000)
      elseif #value == size + 1 then
        found, owed, rest = read(marked_format, value)
        if found == marked then found, cell = head, floor(owed / 10000000) end
      elseif #value == size then
        found, owed, rest = read(format, value)
      else
        found = nil
      end
      owed = owed - now
      if owed < 0 then
        owed, rest = 0, 0
      elseif owed >= max_plausible or rest >= ticks then
        -- The clock was set back, or the value is damaged.
        found = nil
      end
    end
    if found == head and (owed < room_whole or (owed == room_whole and rest <= room_part)) then
      owed, rest = now + owed + cost_whole, rest + cost_part
      if rest >= ticks then owed, rest = owed + 1, rest - ticks end
      local cells = pack('<I7I6', owed, rest)
      if cell and floor(owed / 10000000) == cell then
        call('SETRANGE', keys[key], offset, cells)
        charged[key] = cells
      elseif value then
        local steps = floor(owed / 10000000) * 40 + 80 + MARGIN
        if steps ~= expiry_steps then expiry_steps, expiry = steps, string.format('%.0f', steps * 250) end
        call('SET', keys[key], marked .. cells, 'PXAT', expiry)
        charged[key] = cells
      else
        local steps = floor((rest > 0 and owed + 1 or owed) / 250000) + 1 + MARGIN
        if steps ~= expiry_steps then expiry_steps, expiry = steps, string.format('%.0f', steps * 250) end
        -- Uses NX, because MGET returns nothing for a key of another type.
        if call('SET', keys[key], head .. cells, 'PXAT', expiry, 'NX') then values[key] = head .. cells else found = nil end
      end
      if found then
        reply[replies + 1], reply[replies + 2] = ADMITTED, cells
        replies = replies + 2
      end
    elseif found == head and value then
      reply[replies + 1], reply[replies + 2] = REFUSED, earlier or sub(value, -13)
      replies = replies + 2
    else
      -- This script does not handle the value, or the key is new and the cost is above the burst.
      found = nil
    end
    if not found then
      -- Charges of a key are decided in order, so the general script must also decide all later charges of this key.
      replies, values[key], charged[key] = replies + 1, '', nil
      reply[replies] = GENERAL
    end
  end
end
return table.concat(reply)
