-- Token bucket and leaky bucket: `Bucket`, `TokenBucket` and `LeakyBucket` in Rust.
--
-- Fields   kind (1 = token, 2 = leaky), ticks, whole, part, burst, debt, initial. A leaky bucket has three more fields: the highest
--          level at which a further unit waits at most `max_wait`, as whole and part; and `free`, only to identify the parameters.
--          A unit takes `whole` microseconds and `part` ticks, with `ticks` ticks per microsecond. This way any rate is exact, and
--          the largest numbers are a few years in microseconds, or a burst times a part.
-- Cells    the instant at which nothing will be owed, in microseconds (7), and additional ticks (6).
--
-- An amount *owed* is stored as a time: how long the bucket needs to become unused.

local context = ...
local now, STALE, UP_TO, EXACTLY = context.now, context.STALE, context.UP_TO, context.EXACTLY
local floor, min = math.floor, math.min
local bucket = { format = 'I7I6', cells = 2 }

-- Returns the time that these units take to refill, in microseconds and ticks.
local function ticks(limit, units)
  local whole, part, per_micro = units * limit.whole, units * limit.part, limit.ticks
  if part >= per_micro then
    local carry = floor(part / per_micro)
    return whole + carry, part - carry * per_micro
  end
  return whole, part
end

-- Returns the number of whole units in this time, and the remaining time. The first estimate is off by at most a few
-- units.
local function units(limit, whole, part)
  local n = floor((whole * limit.ticks + part) / limit.unit)
  for _ = 1, 8 do
    local w, p = ticks(limit, n)
    if w < whole or (w == whole and p <= part) then break end
    n = n - 1
  end
  for _ = 1, 8 do
    local w, p = ticks(limit, n + 1)
    if w > whole or (w == whole and p > part) then break end
    n = n + 1
  end
  local w, p = ticks(limit, n)
  w, p = whole - w, part - p
  if p < 0 then w, p = w - 1, p + limit.ticks end
  return n, w, p
end

-- Returns the time owed now, and whether the clock was set back. After a clock step, the maximum is owed.
local function owed(limit, cells)
  local whole, part = cells[limit.cell] - now, cells[limit.cell + 1]
  if whole < 0 then return 0, 0, false end
  local most = limit.max_plausible
  if whole > most or (whole == most and part > limit.deepest_part) then
    return limit.deepest_whole, limit.deepest_part, true
  end
  return whole, part, false
end

-- Writes the time owed now.
local function owe(limit, cells, whole, part)
  local cell = limit.cell
  if part >= limit.ticks then whole, part = whole + 1, part - limit.ticks end
  cells[cell], cells[cell + 1] = now + whole, part
end

function bucket.read(fields)
  local burst, initial, deepest = fields[5], fields[7], fields[5] + fields[6]
  -- Lists all fields that are set later, because Lua reallocates a table that grows.
  local limit = {
    kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0, partial = initial < burst,
    ticks = fields[2], whole = fields[3], part = fields[4], unit = fields[3] * fields[2] + fields[4],
    burst = burst, deepest = deepest, initial = initial, deepest_whole = 0, deepest_part = 0, max_plausible = 0,
    patience_whole = fields[8] or false, patience_part = fields[9] or 0,
    top_whole = 0, top_part = 0, seen_whole = 0, seen_part = 0, stepped_back = false,
  }
  local whole, part = ticks(limit, deepest)
  limit.deepest_whole, limit.deepest_part, limit.max_plausible = whole, part, whole + STALE
  -- The maximum that may be owed after a request is the burst. In a leaky bucket, the last unit must also find a level of at
  -- most `patience`, so at most `patience` plus one unit may be owed.
  whole, part = ticks(limit, burst)
  if limit.patience_whole then
    local w, p = limit.patience_whole + limit.whole, limit.patience_part + limit.part
    if p >= limit.ticks then w, p = w + 1, p - limit.ticks end
    if w < whole or (w == whole and p < part) then whole, part = w, p end
  end
  limit.top_whole, limit.top_part = whole, part
  return limit
end

function bucket.init(limit, cells)
  owe(limit, cells, ticks(limit, limit.burst - limit.initial))
end

-- Returns the number of whole units that can be taken in addition to the time owed.
local function available(limit, whole, part)
  local w, p = limit.top_whole - whole, limit.top_part - part
  if p < 0 then w, p = w - 1, p + limit.ticks end
  if w < 0 then return 0 end
  return (units(limit, w, p))
end

function bucket.weigh(limit, cells, verb, cost)
  local whole, part, stepped_back = owed(limit, cells)
  limit.seen_whole, limit.seen_part, limit.stepped_back = whole, part, stepped_back
  if verb == UP_TO then
    local taken = min(cost, available(limit, whole, part))
    if taken > 0 or cost == 0 then return taken end
    return nil
  end
  local w, p
  if verb == EXACTLY then
    if cost > limit.burst then return nil end
    w, p = limit.top_whole, limit.top_part
    -- A zero cost does not wait, so only the burst limits it.
    if cost == 0 then w, p = ticks(limit, limit.burst) end
  else
    if cost > limit.deepest then return nil end
    w, p = limit.deepest_whole, limit.deepest_part
  end
  local cost_whole, cost_part = ticks(limit, cost)
  w, p = w - cost_whole, p - cost_part
  if p < 0 then w, p = w - 1, p + limit.ticks end
  if whole > w or (whole == w and part > p) then return nil end
  return cost
end

function bucket.commit(limit, cells, taken)
  local cell, whole, part, per_micro = limit.cell, limit.seen_whole, limit.seen_part, limit.ticks
  if taken > 0 then
    whole, part = whole + taken * limit.whole, part + taken * limit.part
    if part >= per_micro then
      local carry = floor(part / per_micro)
      whole, part = whole + carry, part - carry * per_micro
    end
  elseif not limit.stepped_back then
    -- If nothing is taken, only the repair of a clock step is written: the maximum is owed from now on.
    return nil
  end
  cells[cell], cells[cell + 1] = now + whole, part
  return part > 0 and whole + 1 or whole
end

function bucket.fast(limit, whole, part, cost)
  local per_micro, top = limit.ticks, limit.top_whole
  whole = whole - now
  if whole < 0 then
    whole, part = 0, 0
  elseif whole >= limit.max_plausible then
    return nil
  end
  if cost == 0 then return nil end
  whole, part = whole + cost * limit.whole, part + cost * limit.part
  if part >= per_micro then
    local carry = floor(part / per_micro)
    whole, part = whole + carry, part - carry * per_micro
  end
  if whole > top or (whole == top and part > limit.top_part) then return nil end
  return now + whole, part, part > 0 and whole + 1 or whole
end

function bucket.refuse(limit, cells)
  return bucket.commit(limit, cells, 0)
end

function bucket.refund(limit, cells, cost)
  local whole, part = owed(limit, cells)
  local spent, w, p = units(limit, whole, part)
  -- A partly refilled unit still counts as spent, so it can be refunded.
  if w > 0 or p > 0 then spent = spent + 1 end
  local accepted = min(cost, spent)
  if accepted > 0 then
    w, p = ticks(limit, accepted)
    w, p = whole - w, part - p
    if p < 0 then w, p = w - 1, p + limit.ticks end
    if w < 0 then w, p = 0, 0 end
    owe(limit, cells, w, p)
  end
  return accepted
end

function bucket.until_unused(limit, cells)
  local whole, part = owed(limit, cells)
  return part > 0 and whole + 1 or whole
end

function bucket.used(limit, cells)
  local n, w, p = units(limit, owed(limit, cells))
  return n, w * limit.ticks + p, limit.unit
end

-- Raises the state so that at least these units are owed at an instant.
function bucket.at_least(limit, cells, at, used)
  local cell, whole, part = limit.cell, ticks(limit, used)
  whole = at + whole
  if cells[cell] < whole or (cells[cell] == whole and cells[cell + 1] < part) then cells[cell], cells[cell + 1] = whole, part end
end

-- Repairs the state after a clock step.
function bucket.refresh(limit, cells)
  local whole, part, stepped_back = owed(limit, cells)
  if stepped_back then owe(limit, cells, whole, part) end
end

-- A fraction of a token is rounded up to a tick.
function bucket.start_with(limit, cells, whole, part, per)
  if whole > limit.deepest then return false end
  local w, p = ticks(limit, whole)
  if part > 0 then
    local arithmetic = context.arithmetic or chunk('arithmetic')
    context.arithmetic = arithmetic
    part = arithmetic.ceil_of(part, limit.unit, per)
    local carry = floor(part / limit.ticks)
    w, p = w + carry, p + part - carry * limit.ticks
    if p >= limit.ticks then w, p = w + 1, p - limit.ticks end
  end
  owe(limit, cells, w, p)
  return w < limit.deepest_whole or (w == limit.deepest_whole and p <= limit.deepest_part)
end

-- `start_with` does the conversion, because only the used amount is kept.
function bucket.convert()
  return false
end

return bucket
