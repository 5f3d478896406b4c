-- The pool of a key: tokens that were granted to nodes in advance, under `consistency: leased`. `exchange.lua` grants them; this
-- file keeps what must hold while they are out, in every script that changes the state.
--
-- Mirrors `touch` and its helpers of `tollgate_share::lease::Pool` for times that are whole microseconds.
--
-- Value    of a key with a pool: the version, which is 3 (1), the epoch of the pool, which is when it was created (7), until when
--          it is hungry (7), the number of slices (1), for each slice its expiry (7), its sum (7) and how many leases it has (4),
--          and then the value of the state as in `main.lua`. A pool without slices that is not hungry is not stored.
-- Floor    what is outstanding counts as used for as long as it is: otherwise the state would refill to the whole burst beside it.
--
-- A pool is a table with its slices in ascending order of expiry, each { expiry, sum, leases }, and `epoch` and `hungry_until`.

local now = ...
local ceil, max = math.ceil, math.max
local pack, read, sub = struct.pack, struct.unpack, string.sub
local VERSION, HEAD, SLICE = 3, 16, 18
local SECOND, TTL = 1000000, 5000000
local pools = {}

function pools.new()
  return { epoch = now, hungry_until = 0 }
end

-- Returns the pool and the value of the state; nil if the value is damaged.
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

-- Returns the value of a key with this pool and this value of its state.
function pools.close(pool, state)
  local parts = { pack('<BI7I7B', VERSION, pool.epoch, pool.hungry_until, #pool) }
  for number = 1, #pool do
    local slice = pool[number]
    parts[number + 1] = pack('<I7I7I4', slice[1], slice[2], slice[3])
  end
  parts[#parts + 1] = state
  return table.concat(parts)
end

-- Returns until when a pool has to be stored; 0 if not at all.
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

-- Returns when a lease that is granted now expires, if no window ends before.
function pools.expiry()
  return ceil((now + TTL) / SECOND) * SECOND
end

-- Returns whether the floor can be kept in states of these limits. If not, the rule has other limits by now than the leases
-- were granted under.
local function can_lease(limits)
  for number = 1, limits.count do
    if not limits[number].algorithm.at_least or limits[number].window then return false end
  end
  return true
end

-- Keeps what is outstanding used, as of an instant.
function pools.raise_floor(limits, cells, pool, at)
  if not can_lease(limits) then return end
  local sum = pools.outstanding(pool)
  for number = 1, limits.count do limits[number].algorithm.at_least(limits[number], cells, at, sum) end
end

-- Advances to the present: expired slices count as spent, and the state refills to the burst less what is outstanding.
function pools.touch(limits, cells, pool)
  while pool[1] and pool[1][1] <= now do
    pools.raise_floor(limits, cells, pool, pool[1][1])
    table.remove(pool, 1)
  end
  if can_lease(limits) then
    for number = 1, limits.count do limits[number].algorithm.refresh(limits[number], cells) end
    pools.raise_floor(limits, cells, pool, now)
  end
  -- The clock was set back: no lease lasts longer than one that is granted now.
  local latest = pools.expiry()
  while pool[1] and pool[#pool][1] > latest + SECOND do
    local slice = table.remove(pool)
    pools.add(pool, latest, slice[2], slice[3])
  end
end

return pools
