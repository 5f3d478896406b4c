-- The pool of a key: the tokens that nodes hold in leases under `consistency: leased`. `exchange.lua` grants the leases. Every
-- script that changes the state of a key with a pool uses this file to maintain the pool's invariant, the floor.
--
-- Mirrors `tollgate_share::lease::Pool::advance_to` and its helpers for times in whole microseconds.
--
-- Value    stored under a key with a pool: the version (1 byte, value 3); the epoch of the pool (7), which is its creation time;
--          the instant until which it is hungry (7); the number of slices (1); for each slice its expiry (7), its sum (7) and its
--          number of leases (4); and then the value of the state as in `main.lua`. A pool is stored only while it has slices or
--          is hungry.
-- Floor    outstanding tokens count as used until they are settled or expire. Otherwise the state would refill to the full burst
--          while nodes still hold tokens.
--
-- A pool is a table of slices in ascending order of expiry, each { expiry, sum, leases }, with the fields `epoch` and
-- `hungry_until`.

local now = ...
local ceil, max = math.ceil, math.max
local pack, read, sub = struct.pack, struct.unpack, string.sub
local VERSION, HEAD, SLICE = 3, 16, 18
local SECOND, TTL = 1000000, 5000000
local pools = {}

function pools.new()
  return { epoch = now, hungry_until = 0 }
end

-- Returns the pool and the value of the state, or nil if the value is damaged.
function pools.open(value)
  if #value < HEAD then return nil end
  local _, epoch, hungry_until, count = read('<BI7I7B', value)
  local at = HEAD + 1
  if #value < HEAD + count * SLICE then return nil end
  local pool = { epoch = epoch, hungry_until = hungry_until }
  for number = 1, count do
    local expiry, sum, leases
    expiry, sum, leases, at = read('<I7I7I4', value, at)
    pool[number] = { expiry, sum, leases }
  end
  return pool, sub(value, at)
end

-- Returns the combined value of a pool and a state.
function pools.close(pool, state)
  local parts = { pack('<BI7I7B', VERSION, pool.epoch, pool.hungry_until, #pool) }
  for number = 1, #pool do
    local slice = pool[number]
    parts[number + 1] = pack('<I7I7I4', slice[1], slice[2], slice[3])
  end
  parts[#parts + 1] = state
  return table.concat(parts)
end

-- Returns the instant until which a pool must be stored, or 0 if it is no longer needed.
function pools.needed_until(pool)
  local last = max(pool[#pool] and pool[#pool][1] or 0, pool.hungry_until)
  return last > now and last or 0
end

function pools.outstanding(pool)
  local sum = 0
  for number = 1, #pool do sum = sum + pool[number][2] end
  return sum
end

function pools.add(pool, expiry, sum, leases)
  for number = 1, #pool do
    local slice = pool[number]
    if slice[1] == expiry then
      slice[2], slice[3] = slice[2] + sum, slice[3] + leases
      return
    elseif slice[1] > expiry then
      table.insert(pool, number, { expiry, sum, leases })
      return
    end
  end
  pool[#pool + 1] = { expiry, sum, leases }
end

-- Returns the latest possible expiry of a lease that is granted now. If a window ends earlier, the lease expires with it.
function pools.expiry()
  return ceil((now + TTL) / SECOND) * SECOND
end

-- Returns whether the floor can be applied to states of these limits. The floor cannot be applied if the rule's limits
-- have changed to a kind that cannot be leased.
local function can_lease(limits)
  for number = 1, limits.count do
    if not limits[number].algorithm.at_least or limits[number].window then return false end
  end
  return true
end

-- Raises the used amount to at least the outstanding amount, as of an instant.
function pools.raise_floor(limits, cells, pool, at)
  if not can_lease(limits) then return end
  local sum = pools.outstanding(pool)
  for number = 1, limits.count do limits[number].algorithm.at_least(limits[number], cells, at, sum) end
end

-- Advances the pool to now: expired slices count as spent, and the state refills up to the burst minus the outstanding amount.
function pools.touch(limits, cells, pool)
  while pool[1] and pool[1][1] <= now do
    pools.raise_floor(limits, cells, pool, pool[1][1])
    table.remove(pool, 1)
  end
  if can_lease(limits) then
    for number = 1, limits.count do limits[number].algorithm.refresh(limits[number], cells) end
    pools.raise_floor(limits, cells, pool, now)
  end
  -- If the clock was set back, slices are shortened to the expiry of a lease that is granted now.
  local latest = pools.expiry()
  while pool[1] and pool[#pool][1] > latest + SECOND do
    local slice = table.remove(pool)
    pools.add(pool, latest, slice[2], slice[3])
  end
end

return pools
