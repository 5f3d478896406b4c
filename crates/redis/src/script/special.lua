-- Decides charges of the most common kind: one token bucket that starts full, alone in its group, with an exact cost of
-- at least 1. The script of `main.lua` decides everything else, including charges in which this script finds something
-- unusual.
--
-- Mirrors `TokenBucket::weigh` and `commit` for times that are whole microseconds, as `bucket.lua` does; `bucket.lua` says what the
-- numbers mean.
--
-- KEYS     every key that is charged, each once.
-- ARGV[1]  the charges in order, as runs of consecutive keys:
--            2 bytes  index of the first key in KEYS
--            2        number of keys
--            1        index of the parameters in ARGV, less one
--            7        cost of each charge
-- ARGV[2…] the parameters in use, each: ticks, whole, part, burst, what a full burst takes as whole and part, and from what on an
--          instant is not plausible (7 each); then the head of a value under these parameters.
--
-- Reply    one string: the store's time in microseconds (7), then for each charge the byte 255 if nothing was done and the other
--          script has to decide; otherwise
--            1 byte   status: 0 admitted, 1 refused
--            1        the same again: a bit for the limit if it refuses
--            13       the cells after the charge
--
-- Value    as in `main.lua`, so both scripts may be mixed freely, also with nodes that do not know this one. A key that
--          is used again is *marked*: the kind of its limit, 1, is written as the two bytes 204 1, the same number to
--          MessagePack. `main.lua` reads a marked value like any other and writes it without the mark.
-- Expiry   without the mark as in `main.lua`. The expiry of a marked value follows from its cells: the end of the ten
--          seconds in which the state is unused, and ten more. So while that stays the same only the cells are written,
--          which costs half as much as setting an expiry.
--
-- Speed: no closures, no tables for parameters, and a refusal costs no more than reading the value.

local keys, arguments, call = KEYS, ARGV, redis.call
local read, pack, sub, floor = struct.unpack, struct.pack, string.sub, math.floor
local ADMITTED, REFUSED, GENERAL = '\0\0', '\1\1', '\255'
-- As in `main.lua`.
local MARGIN = 4

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local values = call('MGET', unpack(keys))
local reply, replies = { pack('<I7', now) }, 1

-- The current parameters, and the last expiry in quarters of a second and as a string.
local current, ticks, whole, part, burst, top_whole, top_part, max_plausible, head, marked, format, marked_format, size
local expiry_steps, expiry

local runs, position = arguments[1], 1
while position <= #runs do
  local first, count, index, cost
  first, count, index, cost, position = read('<I2I2BI7', runs, position)
  if index ~= current then
    local parameters = arguments[index + 1]
    current = index
    ticks, whole, part, burst, top_whole, top_part, max_plausible = read('<I7I7I7I7I7I7I7', parameters)
    head = sub(parameters, 50)
    size = #head + 13
    marked = pack('<BI2', 2, #head - 2) .. sub(head, 4, 5) .. '\204' .. sub(head, 6)
    format, marked_format = '<c' .. #head .. 'I7I6', '<c' .. #marked .. 'I7I6'
  end
  -- The time that the cost takes, and the most that may be owed before it.
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
    if value then
      if #value == size + 1 then
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
      local written
      if cell and floor(owed / 10000000) == cell then
        call('SETRANGE', keys[key], #marked, cells)
        written = marked .. cells
      elseif value then
        local steps = floor(owed / 10000000) * 40 + 80 + MARGIN
        if steps ~= expiry_steps then expiry_steps, expiry = steps, string.format('%.0f', steps * 250) end
        written = marked .. cells
        call('SET', keys[key], written, 'PXAT', expiry)
      else
        local steps = floor((rest > 0 and owed + 1 or owed) / 250000) + 1 + MARGIN
        if steps ~= expiry_steps then expiry_steps, expiry = steps, string.format('%.0f', steps * 250) end
        written = head .. cells
        -- MGET does not see a key of another type.
        if not call('SET', keys[key], written, 'PXAT', expiry, 'NX') then found = nil end
      end
      if found then
        values[key] = written
        reply[replies + 1], reply[replies + 2] = ADMITTED, cells
        replies = replies + 2
      end
    elseif found == head and value then
      reply[replies + 1], reply[replies + 2] = REFUSED, sub(value, -13)
      replies = replies + 2
    else
      -- A state that this script does not handle, or a cost above the burst of a new key.
      found = nil
    end
    if not found then
      -- Charges of a key are decided in order, so all that follow for this one are not decided here either.
      replies, values[key] = replies + 1, ''
      reply[replies] = GENERAL
    end
  end
end
return table.concat(reply)
