-- Sliding slices: `SlidingSlices` in Rust.
--
-- Fields   kind (10), limit, length of a slice, debt, initial, number of slices per window.
-- Cells    end of the current slice (7), count of the window (7), count of the current slice (7), and a ring with the counts of the
--          previous slices. Each count in the ring has the number of bytes that limit plus debt needs.

local context = ...
local now, STALE, UP_TO, EXACTLY = context.now, context.STALE, context.UP_TO, context.EXACTLY
local floor, max, min = math.floor, math.max, math.min
local sliced = { format = '', cells = 0 }

function sliced.read(fields)
  local precision, deepest, slices = fields[3], fields[2] + fields[4], fields[6]
  local width = 1
  while deepest >= 256 ^ width do width = width + 1 end
  local span = slices * precision
  return {
    kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0,
    partial = fields[5] < fields[2],
    limit = fields[2], deepest = deepest, initial = fields[5], precision = precision, slices = slices, span = span,
    most = precision + max(span, STALE), seen_end = 0, seen_sum = 0, seen_present = 0, seen_turn = 0,
    format = 'I7I7I7' .. string.rep('I' .. width, slices), cells = 3 + slices,
  }
end

local function next_end(limit)
  return now + limit.precision - now % limit.precision
end

-- Returns the cell with the count of the slice with this number.
local function cell_of(limit, number)
  return limit.cell + 3 + number % limit.slices
end

local function number_of(limit, stop)
  return floor((stop + limit.precision - 1) / limit.precision)
end

local function counts(limit, cells)
  local sum = min(cells[limit.cell + 1], limit.deepest)
  return sum, min(cells[limit.cell + 2], sum)
end

-- Returns four values: the end of the current slice, the count of the window, the count of the current slice, and how
-- many slices have started since the state was written. The last value is -1 if no earlier slice counts any more.
local function current(limit, cells)
  local stop, precision = cells[limit.cell], limit.precision
  local sum, present = counts(limit, cells)
  if now < stop and stop <= now + limit.most then return stop, sum, present, 0 end
  local next_stop = next_end(limit)
  -- The clock was set back: the whole count is moved to the current slice.
  if stop > next_stop then return next_stop, sum, sum, -1 end
  local turns = floor((next_stop - stop + precision - 1) / precision)
  if turns > limit.slices or sum == 0 then return next_stop, 0, 0, -1 end
  local number = number_of(limit, stop)
  for turn = 0, turns - 1 do sum = sum - cells[cell_of(limit, number + turn)] end
  return next_stop, max(sum, 0), 0, turns
end

-- Returns the count of the slice that is `back` slices before the current slice.
local function older(limit, cells, stop, turns, back)
  if turns < 0 or back < turns then return 0 end
  if turns > 0 and back == turns then
    local _, present = counts(limit, cells)
    return present
  end
  local number = turns == 0 and number_of(limit, stop) or number_of(limit, cells[limit.cell])
  return cells[cell_of(limit, number + limit.slices - (back - turns))]
end

-- Advances the ring to the current slice, and writes the end and the counts.
local function write(limit, cells, stop, sum, present, turns)
  local cell = limit.cell
  if turns < 0 then
    for slice = 0, limit.slices - 1 do cells[cell + 3 + slice] = 0 end
  elseif turns > 0 then
    local number = number_of(limit, cells[cell])
    local _, last = counts(limit, cells)
    cells[cell_of(limit, number)] = last
    for turn = 1, turns - 1 do cells[cell_of(limit, number + turn)] = 0 end
  end
  cells[cell], cells[cell + 1], cells[cell + 2] = stop, sum, present
end

function sliced.init(limit, cells)
  sliced.start_with(limit, cells, limit.limit - limit.initial, 0)
end

function sliced.weigh(limit, cells, verb, cost)
  local stop, sum, present, turns = current(limit, cells)
  limit.seen_end, limit.seen_sum, limit.seen_present, limit.seen_turn = stop, sum, present, turns
  if verb == UP_TO then
    local taken = min(cost, max(limit.limit - sum, 0))
    if taken > 0 or cost == 0 then return taken end
    return nil
  end
  if sum + cost <= (verb == EXACTLY and limit.limit or limit.deepest) then return cost end
  return nil
end

function sliced.commit(limit, cells, taken)
  local stop, present = limit.seen_end, limit.seen_present
  -- The stored slice ends after the current slice only if the clock was set back. Even a refusal then repairs the stored state.
  if taken == 0 and cells[limit.cell] <= stop then return nil end
  write(limit, cells, stop, limit.seen_sum + taken, present + taken, limit.seen_turn)
  return present + taken > 0 and stop - now + limit.span or 0
end

function sliced.refuse(limit, cells)
  return sliced.commit(limit, cells, 0)
end

function sliced.refund(limit, cells, cost, stamp)
  local stop, sum, present, turns = current(limit, cells)
  local gap = stop - (stamp or stop)
  -- If the slice length was changed, the stamp may not be the end of a slice.
  if gap < 0 or gap % limit.precision ~= 0 then return 0 end
  local back = gap / limit.precision
  if back > limit.slices then return 0 end
  local count = back == 0 and present or older(limit, cells, stop, turns, back)
  local accepted = min(cost, count)
  if accepted > 0 then
    write(limit, cells, stop, max(sum - accepted, 0), back == 0 and present - accepted or present, turns)
    if back > 0 then cells[cell_of(limit, number_of(limit, stop) + limit.slices - back)] = count - accepted end
  end
  return accepted
end

function sliced.until_unused(limit, cells)
  local stop, sum, present, turns = current(limit, cells)
  if sum == 0 then return 0 end
  if present > 0 then return stop - now + limit.span end
  for back = 1, limit.slices do
    if older(limit, cells, stop, turns, back) > 0 then return stop - now + (limit.slices - back) * limit.precision end
  end
  return stop - now + limit.span
end

function sliced.used(limit, cells)
  local _, sum = current(limit, cells)
  return sum, 0, 1
end

function sliced.start_with(limit, cells, spent, part)
  if part > 0 then spent = spent + 1 end
  if spent > limit.deepest then return false end
  write(limit, cells, spent > 0 and next_end(limit) or 0, spent, spent, -1)
  return true
end

-- Slices keep their counts if they have the same length and the new window is at least as long.
function sliced.convert(limit, cells, own, before)
  if limit.precision ~= own.precision or limit.slices < own.slices then return false end
  local stop, sum, present, turns = current(own, before)
  if sum > limit.deepest then return false end
  write(limit, cells, stop, sum, present, -1)
  local number = number_of(limit, stop)
  for back = 1, own.slices do
    cells[cell_of(limit, number + limit.slices - back)] = older(own, before, stop, turns, back)
  end
  return true
end

return sliced
