-- Interval bucket: `IntervalBucket` in Rust.
--
-- Fields   kind (9), refill, period, burst, debt, initial, steps (0 = aligned, 1 = from the first request), offset, longest wait.
-- Cells    the mark (7): the amount owed plus the refills of all steps so far; and the origin from which steps are counted (7), or
--          0 if steps are aligned. At most one unit is refilled per microsecond, so marks are exact until the year 2112.

local context = ...
local now, STALE, UP_TO, REGARDLESS = context.now, context.STALE, context.UP_TO, context.REGARDLESS
local floor, max, min = math.floor, math.max, math.min
local bucket = { format = 'I7I7', cells = 2 }

function bucket.read(fields)
  local refill, period, burst, debt, max_wait = fields[2], fields[3], fields[4], fields[5], fields[9]
  local sold = max_wait == 0 and 0 or (floor(max_wait / period) + 1) * refill
  local deepest = burst + max(sold, debt)
  return {
    kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0, partial = fields[6] < burst,
    refill = refill, period = period, burst = burst, ceiling = burst + debt, initial = fields[6],
    first = fields[7] == 1, offset = fields[8], max_wait = max_wait,
    deepest = deepest, max_plausible = deepest + (floor(STALE / period) + 1) * refill,
    seen_base = 0, seen_elapsed = 0, seen_owed = 0, seen_origin = 0,
  }
end

local function owed_by(limit, mark, base)
  local owed = max(mark - base, 0)
  return owed <= limit.max_plausible and owed or limit.deepest
end

-- Returns the mark of an unused state (`base`), the elapsed time of the current step, the amount owed, and the origin.
local function current_of(limit, mark, origin)
  local period, refill = limit.period, limit.refill
  if limit.first then
    if now < origin then
      -- The clock was set back by at least `ahead`: the time until the origin, plus the steps that must have passed
      -- since the origin if the mark is above the maximum. If `ahead` is more than STALE, the whole amount is owed from
      -- now on.
      local ahead = origin - now + floor(max(mark - limit.deepest, 0) / refill) * period
      if ahead <= STALE then return 0, 0, owed_by(limit, mark, 0), origin end
      return 0, 0, min(mark, limit.deepest), now
    end
    local elapsed = (now - origin) % period
    local base = (now - origin - elapsed) / period * refill
    local owed = owed_by(limit, mark, base)
    if owed == 0 then return 0, 0, 0, now end
    return base, elapsed, owed, origin
  end
  local elapsed = now % period
  local step = (now - elapsed) / period
  local base
  if elapsed >= limit.offset then
    base, elapsed = (step + 1) * refill, elapsed - limit.offset
  else
    base, elapsed = step * refill, elapsed + period - limit.offset
  end
  return base, elapsed, owed_by(limit, mark, base), 0
end

local function current(limit, cells)
  return current_of(limit, cells[limit.cell], cells[limit.cell + 1])
end

local function write(limit, cells, base, owed, origin)
  cells[limit.cell], cells[limit.cell + 1] = base + owed, origin
end

-- Returns the time until `count` more steps have passed.
local function until_step(limit, elapsed, origin, count)
  if count == 0 then return 0 end
  return max(origin - now, 0) + limit.period - elapsed + (count - 1) * limit.period
end

-- Returns the time until nothing is owed.
local function paid(limit, elapsed, owed, origin)
  return until_step(limit, elapsed, origin, floor((owed + limit.refill - 1) / limit.refill))
end

-- Returns the maximum amount that may be owed: the burst plus the refills within the longest wait.
local function room(limit, elapsed, origin)
  if limit.max_wait == 0 then return limit.burst end
  local rest = limit.max_wait - until_step(limit, elapsed, origin, 1)
  if rest < 0 then return limit.burst end
  return limit.burst + (floor(rest / limit.period) + 1) * limit.refill
end

local function available(limit, elapsed, owed, origin)
  return min(max(room(limit, elapsed, origin) - owed, 0), limit.burst)
end

function bucket.init(limit, cells)
  bucket.start_with(limit, cells, limit.burst - limit.initial, 0)
end

function bucket.weigh(limit, cells, verb, cost)
  local base, elapsed, owed, origin = current(limit, cells)
  limit.seen_base, limit.seen_elapsed, limit.seen_owed, limit.seen_origin = base, elapsed, owed, origin
  if verb == UP_TO then
    local taken = min(cost, available(limit, elapsed, owed, origin))
    if taken > 0 or cost == 0 then return taken end
    return nil
  end
  if verb == REGARDLESS then
    if owed + cost <= limit.ceiling then return cost end
    return nil
  end
  if cost <= limit.burst and owed + cost <= room(limit, elapsed, origin) then return cost end
  return nil
end

function bucket.commit(limit, cells, taken)
  local cell, base, owed, origin = limit.cell, limit.seen_base, limit.seen_owed, limit.seen_origin
  if taken == 0 then
    -- If nothing is taken, only the repair of a clock step is written: the amount is owed from now on.
    local changed = base + owed < cells[cell]
    if limit.first then changed = owed > 0 and (changed or origin ~= cells[cell + 1]) end
    if not changed then return nil end
  end
  write(limit, cells, base, owed + taken, origin)
  return paid(limit, limit.seen_elapsed, owed + taken, origin)
end

function bucket.refuse(limit, cells)
  return bucket.commit(limit, cells, 0)
end

function bucket.refund(limit, cells, cost)
  local base, _, owed, origin = current(limit, cells)
  local accepted = min(cost, owed)
  if accepted > 0 then write(limit, cells, base, owed - accepted, origin) end
  return accepted
end

function bucket.until_unused(limit, cells)
  local _, elapsed, owed, origin = current(limit, cells)
  return paid(limit, elapsed, owed, origin)
end

function bucket.used(limit, cells)
  local _, _, owed = current(limit, cells)
  return owed, 0, 1
end

function bucket.start_with(limit, cells, spent, part)
  if part > 0 then spent = spent + 1 end
  if spent > limit.deepest then return false end
  local base, origin = 0, 0
  if spent > 0 then
    local _
    base, _, _, origin = current_of(limit, 0, 0)
  end
  write(limit, cells, base, spent, origin)
  return true
end

-- If both limits count steps from the first request and have the same period, the steps continue.
function bucket.convert(limit, cells, own, before)
  if not limit.first or not own.first or limit.period ~= own.period then return false end
  local base, _, owed, origin = current(own, before)
  if owed > limit.deepest then return false end
  write(limit, cells, base / own.refill * limit.refill, owed, origin)
  return true
end

return bucket
