-- Exchanges leases under `consistency: leased`. For each key, a node reports spent tokens, returns unneeded tokens,
-- requests tokens for an immediate need, and gets further tokens in advance. `pool.lua` describes pools.
--
-- Mirrors `tollgate_share::lease::Pool::exchange` for times in whole microseconds, for the needs `Spend` and `Hold`, and for
-- unchanged parameters. Waits and remaining amounts are not computed here: Rust computes them from the state and the slices.
--
-- KEYS     the keys of the exchanges, without duplicates.
-- ARGV[1]  the exchanges in order. Fields of each exchange, with their sizes in bytes:
--            2        index of the key in KEYS
--            1        index of the parameters in ARGV, minus one
--            1        0: spend the need, 1: add the need to the lease
--            7 + 7    the amount needed, and the amount wanted in addition
--            7        the key's offset for spread windows
--            1        number of reported leases, and for each
--              7 + 7    epoch of the pool, expiry of the slice
--              7 + 7 + 7  amounts spent, returned, and still held
-- ARGV[2…] the parameters in use, as for `main.lua`: only token buckets, and fixed windows without a calendar.
--
-- Reply    one string: the store's time in microseconds (7), then for each exchange
--            1        status: 0 = the need is met, 1 = the need is refused, 2 = the leases are settled, but the state has other
--                     parameters and `main.lua` must decide the need (if its limits cannot be leased, nothing is settled
--                     either), 3 = nothing was done, because the key has another type or its value is not a valid state
--          and for status 0, 1 and 2
--            7        epoch of the pool
--          and for status 0 and 1
--            7 + 7    the leased amount, and the expiry of its slice
--            1        1 if the pool is hungry: a need was recently refused
--            1        number of slices, and for each its expiry and its sum (7 + 7)
--            n        the state after the exchange: its value as in `main.lua`
--
-- Values and expiries are as in `pool.lua` and `main.lua`. A pool that is no longer needed is removed.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local pack, read, byte, sub = struct.pack, struct.unpack, string.byte, string.sub
local call, keys, arguments = redis.call, KEYS, ARGV

local VERSION, POOLED = 2, 3
local EXACTLY, UP_TO, REGARDLESS = 1, 2, 3
local TOKEN_BUCKET, FIXED_WINDOW, CALENDAR = 1, 3, 3
-- Number of fields by kind of limit.
local FIELDS = { [TOKEN_BUCKET] = 7, [FIXED_WINDOW] = 6 }
-- As in `main.lua`.
local MARGIN = 4
local HUNGRY, MAX_SLICES = 1000000, 16
local HUGE = 2 ^ 52
local MET, REFUSED, OTHER_PARAMETERS, NOT_OURS = '\0', '\1', '\2', '\3'

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local context = {
  now = now, STALE = 1000000, EXACTLY = EXACTLY, UP_TO = UP_TO, REGARDLESS = REGARDLESS, spread = 0, windows = {},
  arithmetic = false, knows_key = true,
}
local pools = chunk('pool', now)

-- Returns whether these are the fields of limits that can be leased. A damaged value may contain arbitrary fields.
local function is_plausible(fields)
  if type(fields) ~= 'table' or #fields == 0 or #fields > 8 then return false end
  for index = 1, #fields do
    local limit = fields[index]
    if type(limit) ~= 'table' or not FIELDS[limit[1]] or #limit ~= FIELDS[limit[1]] then return false end
    for field = 1, #limit do
      local number = limit[field]
      if type(number) ~= 'number' or number < 0 or number >= 9007199254740992 or floor(number) ~= number then return false end
    end
    if limit[2] == 0 or limit[3] + (limit[1] == TOKEN_BUCKET and limit[4] or 0) == 0 then return false end
    if limit[1] == FIXED_WINDOW and limit[6] >= CALENDAR then return false end
  end
  return true
end

-- Returns the limits with these parameters, or false if the limits cannot be leased or the bytes are not parameters.
local algorithms, parsed = {}, {}
local function parse(bytes)
  if parsed[bytes] ~= nil then return parsed[bytes] end
  local readable, fields = pcall(cmsgpack.unpack, bytes)
  local limits = false
  if readable and is_plausible(fields) then
    local head = pack('<BI2c0', VERSION, #bytes, bytes)
    limits = { head = head, count = #fields, cells = 1 + 2 * #fields, format = '<c' .. #head, size = 0 }
    for index = 1, #fields do
      local kind = fields[index][1]
      algorithms[kind] = algorithms[kind] or chunk(kind == TOKEN_BUCKET and 'bucket' or 'fixed_window', context)
      local algorithm = algorithms[kind]
      local limit = algorithm.read(fields[index])
      limit.algorithm, limit.cell, limit.capacity = algorithm, index * 2, limit.burst or limit.limit
      limits.format = limits.format .. algorithm.format
      limits[index] = limit
    end
    limits.size = struct.size(limits.format)
  end
  parsed[bytes] = limits
  return limits
end

-- Returns the pool of a key, the limits of its state, and its cells, starting with the head. Returns the pool, false and the value
-- if the limits cannot be leased. Returns nil if the value is not a valid state.
local function load(key, asked)
  local value, pool = call('MGET', key)[1], nil
  if not value then
    if call('EXISTS', key) == 1 then return nil end
    local cells = { asked.head }
    for index = 1, asked.count do asked[index].algorithm.init(asked[index], cells) end
    return pools.new(), asked, cells
  end
  if byte(value) == POOLED then
    pool, value = pools.open(value)
    if not pool then return nil end
  end
  -- Removes the mark of `special.lua`.
  if byte(value, 6) == 204 and byte(value) == VERSION and #value > 7 then
    value = pack('<BI2', VERSION, read('<I2', value, 2) - 1) .. sub(value, 4, 5) .. sub(value, 7)
  end
  if #value < 3 or byte(value) ~= VERSION then return nil end
  local length = read('<I2', value, 2)
  local limits = parse(sub(value, 4, 3 + length))
  -- `main.lua` converts states with limits that cannot be leased.
  if not limits then return pool or pools.new(), false, value end
  if #value ~= limits.size then return nil end
  return pool or pools.new(), limits, { read(limits.format, value) }
end

local function take(limits, cells, amount)
  if amount == 0 then return end
  for index = 1, limits.count do
    local limit = limits[index]
    limit.algorithm.weigh(limit, cells, EXACTLY, 0)
    limit.algorithm.commit(limit, cells, amount)
  end
end

local function settle(limits, cells, pool, epoch, expiry, spent, back, held)
  if epoch ~= pool.epoch then
    -- The store lost the state, so spent and held amounts are charged to the new state.
    take(limits, cells, spent + held)
    for index = 1, limits.count do limits[index].algorithm.refresh(limits[index], cells) end
    if expiry > now and held > 0 then pools.add(pool, expiry, held, 1) end
    return
  end
  for number = 1, #pool do
    local slice = pool[number]
    if slice[1] == expiry then
      slice[2] = max(slice[2] - spent, 0)
      back = min(back, slice[2])
      slice[2] = slice[2] - back
      if held == 0 then slice[3] = max(slice[3] - 1, 0) end
      if slice[2] == 0 then table.remove(pool, number) end
      for index = 1, limits.count do limits[index].algorithm.refund(limits[index], cells, back) end
      pools.raise_floor(limits, cells, pool, now)
      return
    end
  end
  -- A missing slice has expired and counts as spent.
end

local function left_of(limit, cells)
  return limit.algorithm.weigh(limit, cells, UP_TO, HUGE) or 0
end

-- Returns the amount that can be leased in addition to the need.
local function spare(limits, cells, pool, need, wants, expiry)
  local sum, leases, has_slice = pools.outstanding(pool), 0, false
  for number = 1, #pool do
    leases = leases + pool[number][3]
    has_slice = has_slice or pool[number][1] == expiry
  end
  if #pool >= MAX_SLICES and not has_slice then return 0 end
  leases = max(leases, 1)
  local amount = wants
  for index = 1, limits.count do
    local limit = limits[index]
    local left = left_of(limit, cells)
    amount = min(amount, left - need, ceil(left / (2 * leases)), floor(limit.capacity / 2) - sum)
  end
  return max(amount, 0)
end

-- Writes a state and its pool.
local function store(key, pool, value, unused)
  local until_when = pools.needed_until(pool)
  if until_when > 0 then
    value, unused = pools.close(pool, value), max(unused, until_when - now)
  end
  call('SET', key, value, 'PXAT', string.format('%.0f', (floor((now + unused) / 250000) + 1 + MARGIN) * 250))
end

local exchanges, position = arguments[1], 1
local reply = { pack('<I7', now) }
while position <= #exchanges do
  local key, index, holds, need, wants, reports
  key, index, holds, need, wants, context.spread, reports, position = read('<I2BBI7I7I7B', exchanges, position)
  local asked = parse(arguments[index + 1])
  if not asked then error('limits that cannot be leased') end
  key = keys[key]
  local pool, limits, cells = load(key, asked)
  if pool and limits then pools.touch(limits, cells, pool) end
  for _ = 1, reports do
    local epoch, expiry, spent, back, held
    epoch, expiry, spent, back, held, position = read('<I7I7I7I7I7', exchanges, position)
    if pool and limits then settle(limits, cells, pool, epoch, expiry, spent, back, held) end
  end
  if not pool then
    reply[#reply + 1] = NOT_OURS
  elseif not limits then
    reply[#reply + 1] = OTHER_PARAMETERS .. pack('<I7', pool.epoch)
  else
    local status, leased, expiry, hungry = OTHER_PARAMETERS, 0, pools.expiry(), now < pool.hungry_until and 1 or 0
    if limits == asked then
      local left = HUGE
      for number = 1, limits.count do
        local limit = limits[number]
        left = min(left, left_of(limit, cells))
        if limit.algorithm.window_end then expiry = min(expiry, limit.algorithm.window_end(limit)) end
      end
      if need > left then
        status, pool.hungry_until = REFUSED, now + HUNGRY
      else
        status, leased = MET, spare(limits, cells, pool, need, wants, expiry)
        if holds == 1 then leased = leased + need else take(limits, cells, need) end
        take(limits, cells, leased)
        if leased > 0 then pools.add(pool, expiry, leased, 1) end
      end
    end
    local unused = 0
    for number = 1, limits.count do unused = max(unused, limits[number].algorithm.until_unused(limits[number], cells)) end
    local value = pack(limits.format, unpack(cells, 1, limits.cells))
    store(key, pool, value, unused)
    reply[#reply + 1] = status .. pack('<I7', pool.epoch)
    if status ~= OTHER_PARAMETERS then
      local slices = { pack('<I7I7BB', leased, leased > 0 and expiry or 0, hungry, #pool) }
      for number = 1, #pool do slices[number + 1] = pack('<I7I7', pool[number][1], pool[number][2]) end
      reply[#reply + 1] = table.concat(slices) .. value
    end
  end
end
return table.concat(reply)
