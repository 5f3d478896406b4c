-- Sliding window: `SlidingWindow` in Rust.
--
-- Fields   kind (4), limit, length, debt, initial.
-- Cells    end of the window (7), count of the previous window (7), count of the window (7).

local context = ...
local now, STALE, UP_TO, EXACTLY = context.now, context.STALE, context.UP_TO, context.EXACTLY
local max, min = math.max, math.min
local arithmetic = context.arithmetic or chunk('arithmetic')
context.arithmetic = arithmetic
local product_fits, ceil_of, divided = arithmetic.product_fits, arithmetic.ceil_of, arithmetic.divided
local window = { format = 'I7I7I7', cells = 3 }

function window.read(fields)
  return {
    kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0,
    partial = fields[5] < fields[2],
    limit = fields[2], length = fields[3], deepest = fields[2] + fields[4], initial = fields[5],
    most = fields[3] + max(fields[3], STALE), seen_end = 0, seen_previous = 0, seen_used = 0,
  }
end

local function next_end(limit)
  return now + limit.length - now % limit.length
end

-- Returns the end of the current window, the count of the previous window, and the count of the current window.
local function current(limit, cells)
  local cell, deepest = limit.cell, limit.deepest
  local stop, previous, used = cells[cell], min(cells[cell + 1], deepest), min(cells[cell + 2], deepest)
  if now < stop and stop <= now + limit.most then return stop, previous, used end
  local next_stop = next_end(limit)
  -- The clock was set back: the counts are moved to the current window.
  if stop > next_stop then return next_stop, previous, used end
  if next_stop - stop <= limit.length then return next_stop, used, 0 end
  return next_stop, 0, 0
end

local function write(limit, cells, stop, previous, used)
  local cell = limit.cell
  cells[cell], cells[cell + 1], cells[cell + 2] = stop, previous, used
end

function window.init(limit, cells)
  window.start_with(limit, cells, limit.limit - limit.initial, 0)
end

-- Returns the weighted count of the previous window, rounded up.
local function weight(limit, stop, previous)
  if previous == 0 then return 0 end
  return ceil_of(previous, min(stop - now, limit.length), limit.length)
end

-- Returns the number of whole units that can be taken in addition to the estimate.
local function available(limit, stop, previous, used)
  return max(limit.limit - used - weight(limit, stop, previous), 0)
end

function window.weigh(limit, cells, verb, cost)
  local stop, previous, used = current(limit, cells)
  limit.seen_end, limit.seen_previous, limit.seen_used = stop, previous, used
  if verb == UP_TO then
    local taken = min(cost, available(limit, stop, previous, used))
    if taken > 0 or cost == 0 then return taken end
    return nil
  end
  local room = (verb == EXACTLY and limit.limit or limit.deepest) - cost - used
  if room < 0 then return nil end
  if previous == 0 or product_fits(previous, min(stop - now, limit.length), room, limit.length) then return cost end
  return nil
end

function window.commit(limit, cells, taken)
  local cell, stop, previous, used = limit.cell, limit.seen_end, limit.seen_previous, limit.seen_used
  -- The stored window ends after the current window only if the clock was set back. Even a refusal then repairs the stored state.
  if taken == 0 and cells[cell] <= stop then return nil end
  used = min(used + taken, limit.deepest)
  cells[cell], cells[cell + 1], cells[cell + 2] = stop, previous, used
  if used > 0 then return stop - now + limit.length end
  return previous > 0 and stop - now or 0
end

function window.refuse(limit, cells)
  return window.commit(limit, cells, 0)
end

function window.refund(limit, cells, cost, stamp)
  local stop, previous, used = current(limit, cells)
  local taken_in = stamp or stop
  local accepted = 0
  if taken_in == stop then
    accepted = min(cost, used)
    used = used - accepted
  elseif taken_in + limit.length == stop then
    accepted = min(cost, previous)
    previous = previous - accepted
  end
  if accepted > 0 then
    write(limit, cells, stop, previous, used)
  end
  return accepted
end

function window.until_unused(limit, cells)
  local stop, previous, used = current(limit, cells)
  if used > 0 then return stop - now + limit.length end
  return previous > 0 and stop - now or 0
end

function window.used(limit, cells)
  local stop, previous, used = current(limit, cells)
  if previous == 0 then return used, 0, 1 end
  local whole, part = divided(previous, min(stop - now, limit.length), limit.length)
  return used + whole, part, limit.length
end

function window.start_with(limit, cells, spent, part)
  if part > 0 then spent = spent + 1 end
  if spent > limit.deepest then return false end
  write(limit, cells, spent > 0 and next_end(limit) or 0, 0, spent)
  return true
end

-- Windows of the same length keep both counts, if the limit can hold them.
function window.convert(limit, cells, own, before)
  local stop, previous, used = current(own, before)
  if limit.length ~= own.length or previous > limit.deepest or used > limit.deepest then return false end
  write(limit, cells, stop, previous, used)
  return true
end

return window
