-- Fixed window: `FixedWindow` in Rust.
--
-- Fields   kind (3), limit, length, debt, initial, phase (0 = epoch, 1 = first request, 2 = spread, 3 + n = the charge's calendar
--          window at zero-based position n).
-- Cells    end of the window (7), count (7).

local context = ...
local now, STALE, UP_TO, EXACTLY = context.now, context.STALE, context.UP_TO, context.EXACTLY
local floor, max, min = math.floor, math.max, math.min
local FIRST_REQUEST, SPREAD, CALENDAR = 1, 2, 3
local window = { format = 'I7I7', cells = 2 }

function window.read(fields)
  return {
    kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0,
    partial = fields[5] < fields[2], spreads = fields[6] == SPREAD, window = fields[6] >= CALENDAR and fields[6] - 2,
    limit = fields[2], length = fields[3], deepest = fields[2] + fields[4], initial = fields[5], phase = fields[6],
    -- Upper bound of the window length, so that a state is kept until its debt is paid off. No calendar window is longer than 1.5
    -- times the average.
    longest = fields[6] >= CALENDAR and floor(fields[3] * 1.5) or fields[3],
    slack = max(fields[3], STALE), seen_end = 0, seen_used = 0,
  }
end

-- Returns the charge's calendar window for this limit, or nil. Without a calendar window, windows start with the first
-- request.
local function calendar_window(limit)
  return limit.window and context.windows[limit.window] or nil
end

-- Returns the end and the count of the window that contains now, given the count of another window that ends at `stop`.
local function enter(limit, stop, used)
  local length, given = limit.length, calendar_window(limit)
  local free = not given and (limit.phase == FIRST_REQUEST or limit.phase >= CALENDAR)
  local next_stop
  if given then
    next_stop = given[2]
  elseif free then
    next_stop = now + length
  else
    -- If the count is not zero, the offset follows from `stop`. The charge has no offset if its parameters have no spread window.
    local offset = limit.phase == SPREAD and (used > 0 and stop or context.spread) % length or 0
    local elapsed = now % length
    next_stop = now + (elapsed < offset and offset - elapsed or length - (elapsed - offset))
  end
  -- The count is zero, or the clock was set back: the count is moved to the current window.
  if used == 0 or stop > next_stop then return next_stop, used end
  local passed
  if given then
    passed = max(floor((next_stop - stop + floor(length / 2)) / length), 1)
  else
    passed = floor((now - stop) / length) + 1
  end
  used = max(used - passed * limit.limit, 0)
  if free and used > 0 then return stop + passed * length, used end
  return next_stop, used
end

-- Returns the end and the count of the current window.
local function current(limit, cells)
  local stop, used = cells[limit.cell], min(cells[limit.cell + 1], limit.deepest)
  if used > 0 then
    local given = calendar_window(limit)
    -- A window of the limit's earlier calendar may end before the given window.
    local most = given and given[2] + max(given[2] - given[1], limit.slack) or now + limit.length + limit.slack
    if now < stop and stop <= most then return stop, used end
  end
  return enter(limit, stop, used)
end

local function write(limit, cells, stop, used)
  cells[limit.cell], cells[limit.cell + 1] = stop, used
end

function window.init(limit, cells)
  window.start_with(limit, cells, limit.limit - limit.initial, 0)
end

function window.weigh(limit, cells, verb, cost)
  local stop, used = current(limit, cells)
  limit.seen_end, limit.seen_used = stop, used
  if verb == UP_TO then
    local taken = min(cost, max(limit.limit - used, 0))
    if taken > 0 or cost == 0 then return taken end
    return nil
  end
  if used + cost <= (verb == EXACTLY and limit.limit or limit.deepest) then return cost end
  return nil
end

function window.commit(limit, cells, taken)
  local cell, stop, used = limit.cell, limit.seen_end, limit.seen_used
  -- The stored window ends after the current window only if the clock was set back. Even a refusal then repairs the stored state.
  if taken == 0 and cells[cell] <= stop then return nil end
  used = used + taken
  cells[cell], cells[cell + 1] = stop, used
  if used == 0 then return 0 end
  return stop - now + floor((used - 1) / limit.limit) * limit.longest
end

function window.refuse(limit, cells)
  return window.commit(limit, cells, 0)
end

function window.refund(limit, cells, cost, stamp)
  local stop, used = current(limit, cells)
  if stamp and stamp ~= stop then return 0 end
  local accepted = min(cost, used)
  if accepted > 0 then
    write(limit, cells, stop, used - accepted)
  end
  return accepted
end

function window.until_unused(limit, cells)
  local stop, used = current(limit, cells)
  if used == 0 then return 0 end
  return stop - now + floor((used - 1) / limit.limit) * limit.longest
end

function window.used(limit, cells)
  local _, used = current(limit, cells)
  return used, 0, 1
end

-- Raises the count to at least `used` if the window has not ended at the instant `at`. A state without a count does not
-- belong to a window yet. Such a state enters the current window if the key's offset is known.
function window.at_least(limit, cells, at, used)
  local cell = limit.cell
  if at == now and used > 0 and cells[cell + 1] == 0 and (context.knows_key or limit.phase ~= SPREAD) then
    cells[cell] = enter(limit, 0, 0)
  end
  if at < cells[cell] and cells[cell + 1] < used then cells[cell + 1] = used end
end

-- Advances the state to the current window.
function window.refresh(limit, cells)
  local stop, used = current(limit, cells)
  write(limit, cells, used > 0 and stop or 0, used)
end

-- Returns the end of the current window. Not used for calendar windows.
function window.window_end(limit)
  return (enter(limit, 0, 0))
end

function window.start_with(limit, cells, spent, part)
  if part > 0 then spent = spent + 1 end
  if spent > limit.deepest then return false end
  write(limit, cells, spent > 0 and enter(limit, 0, 0) or 0, spent)
  return true
end

-- Returns whether a state belongs to the calendar of the given window. If the window of the state ends within the given window, or
-- after it, the state belongs to another calendar.
function window.lies_in(limit, cells, given)
  local stop, used = cells[limit.cell], cells[limit.cell + 1]
  return not given or used == 0 or stop <= given[1] or stop == given[2]
end

-- Windows of the same phase, length and calendar keep their end.
function window.convert(limit, cells, own, before)
  if limit.phase ~= own.phase or limit.length ~= own.length or context.other_calendar then return false end
  local stop, used = current(own, before)
  if used > limit.deepest then return false end
  write(limit, cells, stop, used)
  return true
end

return window
