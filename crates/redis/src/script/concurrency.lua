-- Concurrency: `Concurrency` in Rust. Rust uses linked slots; here, the leases are a list sorted by their ends.
--
-- Fields   kind (6), limit, lease, debt.
-- Cells    total weight of all leases in the list, ended or not (4); last assigned number (7); length of the list in bytes (2); the
--          leases, each with its number (7), its end (7) and its weight (2).
-- Summary  held weight (2), end of the last lease (7, or 0), last assigned number (7).

local context = ...
local now, STALE, UP_TO, REGARDLESS = context.now, context.STALE, context.UP_TO, context.REGARDLESS
local max, min, find, concat = math.max, math.min, string.find, table.concat
local pack, read, sub = struct.pack, struct.unpack, string.sub
local leases = { format = 'I4I7I2c0', cells = 3 }
local LEASE = '<I7I7I2'

function leases.read(fields)
  return { limit = fields[2], lease = fields[3], slots = fields[2] + fields[4] }
end

function leases.encode(limit, cells)
  local cell = limit.cell
  return pack('<I4I7I2c0', cells[cell], cells[cell + 1], #cells[cell + 2], cells[cell + 2])
end

function leases.sound(limit, cells)
  return #cells[limit.cell + 2] % 16 == 0
end

function leases.init(limit, cells)
  cells[limit.cell], cells[limit.cell + 1], cells[limit.cell + 2] = 0, 0, ''
end

-- Returns the total weight and the number of ended leases. Stops as soon as the weight reaches `enough`.
local function ended(limit, cells, enough)
  local list, weight, count = cells[limit.cell + 2], 0, 0
  for at = 1, #list, 16 do
    if weight >= enough then break end
    local _, stop, part = read(LEASE, list, at)
    if stop > now then break end
    weight, count = weight + part, count + 1
  end
  return weight, count
end

local function held(limit, cells)
  return max(cells[limit.cell] - ended(limit, cells, 1 / 0), 0)
end

-- Returns the end of the last lease, or 0.
local function last_end(limit, cells)
  local list = cells[limit.cell + 2]
  return #list > 0 and read('<I7', list, #list - 8) or 0
end

-- Returns whether the clock was set back: an existing lease ends more than STALE later than a new lease would.
local function stepped_back(limit, cells)
  return last_end(limit, cells) - now > limit.lease + STALE
end

-- Returns the list with every later end replaced by `latest`. The order of the leases does not change.
local function cut_short(list, latest)
  local from = #list + 1
  while from > 1 and read('<I7', list, from - 9) > latest do from = from - 16 end
  if from > #list then return list end
  local parts = { sub(list, 1, from - 1) }
  for at = from, #list, 16 do
    local number, _, weight = read(LEASE, list, at)
    parts[#parts + 1] = pack(LEASE, number, latest, weight)
  end
  return concat(parts)
end

local function available(limit, cells)
  return max(limit.limit - held(limit, cells), 0)
end

function leases.weigh(limit, cells, verb, cost)
  local ceiling = verb == REGARDLESS and limit.slots or limit.limit
  if verb == UP_TO then
    if cost == 0 then return 0 end
    cost = min(cost, max(available(limit, cells), 1))
  end
  if cost > ceiling then return nil end
  -- Counts ended leases only until their weight is enough. Usually no ended lease has to be counted.
  local missing = cells[limit.cell] + cost - ceiling
  if missing > 0 and ended(limit, cells, missing) < missing then return nil end
  return cost
end

-- Returns the list with a lease inserted in order of its end. The new lease is the last one, unless the clock or the
-- lease length changed.
local function insert(list, number, stop, weight)
  local at = #list
  while at > 0 and read('<I7', list, at - 8) > stop do at = at - 16 end
  return sub(list, 1, at) .. pack(LEASE, number, stop, weight) .. sub(list, at + 1)
end

function leases.commit(limit, cells, taken)
  local cell, wrote = limit.cell, false
  -- Even a refusal writes the repair of a clock step: leases that are too long are shortened to a full lease from now.
  if stepped_back(limit, cells) then
    cells[cell + 2] = cut_short(cells[cell + 2], now + limit.lease)
    wrote = true
  end
  if taken == 0 then return wrote and leases.until_unused(limit, cells) or nil end
  local weight, count = ended(limit, cells, 1 / 0)
  local list, stop = sub(cells[cell + 2], 16 * count + 1), now + limit.lease
  local number = max(cells[cell + 1] + 1, now)
  cells[cell] = max(cells[cell] - weight, 0) + taken
  cells[cell + 1] = number
  cells[cell + 2] = insert(list, number, stop, taken)
  return leases.until_unused(limit, cells)
end

function leases.refuse(limit, cells)
  return leases.commit(limit, cells, 0)
end

-- Returns the position, end and weight of the lease with this number, or nil if the lease has ended.
local function lease_of(list, stamp)
  if not stamp or stamp == 0 then return nil end
  local sought, at = pack('<I7', stamp), 1
  repeat
    at = find(list, sought, at, true)
    if not at then return nil end
    if at % 16 == 1 then break end
    at = at + 1
  until false
  local _, stop, weight = read(LEASE, list, at)
  if stop <= now then return nil end
  return at, stop, weight
end

function leases.renew(limit, cells, stamp)
  local list = cells[limit.cell + 2]
  local at, stop, weight = lease_of(list, stamp)
  if not at then return false end
  local rest = sub(list, 1, at - 1) .. sub(list, at + 16)
  cells[limit.cell + 2] = insert(rest, stamp, max(stop, now + limit.lease), weight)
  return true
end

function leases.refund(limit, cells, cost, stamp)
  local cell, list = limit.cell, cells[limit.cell + 2]
  local at, stop, weight = lease_of(list, stamp)
  if not at then return 0 end
  local given = min(cost, weight)
  if given == 0 then return 0 end
  local rest = given < weight and pack(LEASE, stamp, stop, weight - given) or ''
  cells[cell] = max(cells[cell] - given, 0)
  cells[cell + 2] = sub(list, 1, at - 1) .. rest .. sub(list, at + 16)
  return given
end

function leases.until_unused(limit, cells)
  if stepped_back(limit, cells) then return limit.lease end
  return max(last_end(limit, cells) - now, 0)
end

function leases.used(limit, cells)
  return held(limit, cells), 0, 1
end

-- Creates one lease of this weight. No request has the stamp of the lease, so the lease stays until it expires.
function leases.start_with(limit, cells, spent, part)
  if part > 0 then spent = spent + 1 end
  if spent > limit.slots then return false end
  local number = spent > 0 and now or 0
  cells[limit.cell], cells[limit.cell + 1] = spent, number
  cells[limit.cell + 2] = spent > 0 and pack(LEASE, number, now + limit.lease, spent) or ''
  return true
end

-- Keeps the leases, each shortened to at most the new lease length from now.
function leases.convert(limit, cells, own, before)
  local cell, list = limit.cell, before[own.cell + 2]
  local weight, count = ended(own, before, 1 / 0)
  local rest = max(before[own.cell] - weight, 0)
  if rest > limit.slots then return false end
  cells[cell], cells[cell + 1] = rest, before[own.cell + 1]
  cells[cell + 2] = cut_short(sub(list, 16 * count + 1), now + limit.lease)
  return true
end

function leases.summary(limit, cells)
  return pack('<I2I7I7', held(limit, cells), last_end(limit, cells), cells[limit.cell + 1])
end

return leases
