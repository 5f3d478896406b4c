-- Sliding log: `SlidingLog` in Rust.
--
-- Fields   kind (5), limit, length, debt, initial, gap, and 1 if refused attempts count (otherwise 0).
-- Cells    number of the oldest entries that belong to no request (2): they represent capacity that is missing from `initial` or
--          was used under another algorithm; length of the entries in bytes (2); instants of the entries, oldest first (7 each).
-- Summary  number of entries in the window (2), wait for the request (7), wait for the same request again (7), newest entry
--          (7, or 0), time until the state is unused (7).

local context = ...
local now, STALE, UP_TO, REGARDLESS = context.now, context.STALE, context.UP_TO, context.REGARDLESS
local floor, max, min = math.floor, math.max, math.min
local pack, read, sub, rep = struct.pack, struct.unpack, string.sub, string.rep
local log = { format = 'I2I2c0', cells = 2 }

function log.read(fields)
  return {
    partial = fields[5] < fields[2],
    limit = fields[2], length = fields[3], slots = fields[2] + fields[4], initial = fields[5], gap = fields[6],
    counts_refused = fields[7] == 1,
  }
end

function log.encode(limit, cells)
  local entries = cells[limit.cell + 1]
  return pack('<I2I2c0', cells[limit.cell], #entries, entries)
end

function log.sound(limit, cells)
  return #cells[limit.cell + 1] % 7 == 0 and cells[limit.cell] * 7 <= #cells[limit.cell + 1]
end

-- Returns the number of entries. If the clock was set back, also returns the current time, which replaces the instants
-- of later entries.
local function ring(limit, cells)
  local entries = cells[limit.cell + 1]
  local count = #entries / 7
  if count > 0 and read('<I7', entries, #entries - 6) > now + STALE then return min(count, limit.slots), now end
  return min(count, limit.slots), nil
end

-- Returns an existing entry. Index 0 is the newest entry.
local function entry(entries, index, latest)
  local instant = read('<I7', entries, #entries - 7 * index - 6)
  if latest and instant > latest then return latest end
  return instant
end

-- Returns the first index in [low, high) whose entry is not later than `instant`, or `high`.
local function later_than(entries, latest, low, high, instant)
  while low < high do
    local middle = floor((low + high) / 2)
    if entry(entries, middle, latest) > instant then low = middle + 1 else high = middle end
  end
  return low
end

-- Returns the number of entries in the window, and both results of `ring`.
local function inside_of(limit, cells)
  local count, latest = ring(limit, cells)
  return later_than(cells[limit.cell + 1], latest, 0, count, now - limit.length), count, latest
end

-- Returns the remaining part of a gap after the last request.
local function gap_left(cells, cell, count, latest, gap)
  if gap == 0 or count <= cells[cell] then return 0 end
  return max(entry(cells[cell + 1], 0, latest) + gap - now, 0)
end

-- Returns the cost to check, the maximum number of entries in the window, and the minimum gap after the last request.
local function wanted(limit, cells, verb, cost)
  if verb == REGARDLESS then return cost, limit.slots, 0 end
  if verb == UP_TO and cost > 0 then cost = min(cost, max(limit.limit - inside_of(limit, cells), 1)) end
  return cost, limit.limit, cells.gap_passed and 0 or limit.gap
end

-- Returns the remaining part of a span that starts with the entry at an index, as if `written` entries had been added now.
local function left(entries, count, latest, written, index, span)
  if index >= written then
    if index - written >= count then return 0 end
    return max(entry(entries, index - written, latest) + span - now, 0)
  end
  -- An added entry is never earlier than the newest entry, so that entries stay sorted.
  return max((count > 0 and max(entry(entries, 0, latest), now) or now) + span - now, 0)
end

-- Returns the time until the cost is admitted, as if `written` entries had been added now. `ceiling` is the maximum number
-- of entries in the window, and the cost must not exceed it.
local function wait(limit, cells, cost, ceiling, gap, written)
  local entries, count, latest = cells[limit.cell + 1], ring(limit, cells)
  local room = left(entries, count, latest, written, ceiling - cost, limit.length)
  if gap == 0 or cost == 0 then return room end
  if written > 0 then return max(room, left(entries, count, latest, written, 0, gap)) end
  return max(room, gap_left(cells, limit.cell, count, latest, gap))
end

-- Adds entries with the current time, or the time of the newest entry if that is later, and returns this time. Drops the
-- oldest entries beyond the maximum.
local function push(limit, cells, units, count, latest)
  local entries = cells[limit.cell + 1]
  if latest then
    -- Moves entries that are ahead of the clock to the current time.
    local ahead = later_than(entries, nil, 0, count, latest)
    entries = sub(entries, 1, #entries - 7 * ahead) .. rep(pack('<I7', latest), ahead)
  end
  local instant = count > 0 and max(entry(entries, 0), now) or now
  units = min(units, limit.slots)
  entries = entries .. rep(pack('<I7', instant), units)
  cells[limit.cell] = max(cells[limit.cell] - max(count + units - limit.slots, 0), 0)
  cells[limit.cell + 1] = sub(entries, -7 * limit.slots)
  return instant
end

function log.start_with(limit, cells, used, part)
  if part > 0 then used = used + 1 end
  if used > limit.slots then return false end
  cells[limit.cell], cells[limit.cell + 1] = used, rep(pack('<I7', now), used)
  return true
end

function log.init(limit, cells)
  log.start_with(limit, cells, limit.limit - limit.initial, 0)
end

function log.weigh(limit, cells, verb, cost)
  if verb == UP_TO and cost == 0 then return 0 end
  local ceiling, gap
  cost, ceiling, gap = wanted(limit, cells, verb, cost)
  if cost > ceiling or wait(limit, cells, cost, ceiling, gap, 0) > 0 then return nil end
  return cost
end

function log.commit(limit, cells, taken)
  local count, latest = ring(limit, cells)
  if taken == 0 and not latest then return nil end
  local instant = push(limit, cells, taken, count, latest)
  if taken == 0 then return log.until_unused(limit, cells) end
  return max(instant + max(limit.length, limit.gap) - now, 0)
end

-- Returns the wait of a refusal, and the number of entries that the refusal adds. If refused attempts count, the wait
-- includes this attempt.
local function refusal(limit, cells, verb, cost)
  local units, ceiling, gap = wanted(limit, cells, verb, cost)
  -- A request that can never be admitted adds no entries.
  if units > ceiling then return 0, 0 end
  local asked = wait(limit, cells, units, ceiling, gap, 0)
  if asked == 0 or not limit.counts_refused then return asked, 0 end
  -- An `UP_TO` request is admitted as soon as one unit fits.
  return wait(limit, cells, verb == UP_TO and 1 or units, ceiling, gap, units), units
end

-- Returns the remaining part of this limit's gap after the last request, for a state with the parameters `own`. The gap is capped,
-- because such a state remembers the request only for its own length or gap.
function log.gap_left(limit, own, cells)
  local count, latest = ring(own, cells)
  return gap_left(cells, own.cell, count, latest, min(limit.gap, max(own.length, own.gap)))
end

-- Returns the number of entries that a request refused by this limit adds to a state with the parameters `own`.
function log.attempts(limit, own, cells, verb, cost)
  if not limit.counts_refused then return 0 end
  if verb == UP_TO then return min(cost, max(limit.limit - inside_of(own, cells), 1)) end
  return cost <= (verb == REGARDLESS and limit.slots or limit.limit) and cost or 0
end

function log.refuse(limit, cells, verb, cost)
  local asked, units = refusal(limit, cells, verb, cost)
  cells[-limit.cell] = asked
  return log.commit(limit, cells, units)
end

function log.refund(limit, cells, cost, stamp)
  local cell, entries = limit.cell, cells[limit.cell + 1]
  local inside, count, latest = inside_of(limit, cells)
  -- Without a stamp, removes the oldest entries. These entries expire first, so removing them restores the least capacity.
  local from, to = inside - min(cost, inside), inside
  if stamp then
    from = later_than(entries, latest, 0, inside, stamp)
    to = later_than(entries, latest, from, inside, stamp - 1)
  end
  local accepted = min(cost, to - from)
  if accepted > 0 then
    local requests = max(count - cells[cell] - from, 0)
    cells[cell] = max(cells[cell] - max(accepted - requests, 0), 0)
    cells[cell + 1] = sub(entries, 1, #entries - 7 * (from + accepted)) .. sub(entries, #entries - 7 * from + 1)
  end
  return accepted
end

function log.until_unused(limit, cells)
  local count, latest = ring(limit, cells)
  if count == 0 then return 0 end
  local inside = entry(cells[limit.cell + 1], 0, latest) + limit.length - now
  return max(inside, gap_left(cells, limit.cell, count, latest, limit.gap), 0)
end

function log.used(limit, cells)
  return inside_of(limit, cells), 0, 1
end

-- Keeps the entries inside the old window. If no entry is inside, keeps the last request until its gap has passed. If the
-- new window is shorter, older entries are moved to its start, so that the used amount stays the same.
function log.convert(limit, cells, own, before)
  local entries = before[own.cell + 1]
  local inside, count, latest = inside_of(own, before)
  if inside > limit.slots then return false end
  local kept = inside
  if kept == 0 and gap_left(before, own.cell, count, latest, own.gap) > 0 then kept = 1 end
  local oldest, copies = now - limit.length + 1, {}
  for index = kept - 1, 0, -1 do
    local instant = entry(entries, index, latest)
    if index < inside and instant < oldest then instant = oldest end
    copies[kept - index] = pack('<I7', instant)
  end
  -- `gap_left` checks the gap with the original entries.
  cells.gap_passed = true
  cells[limit.cell] = max(kept - (count - before[own.cell]), 0)
  cells[limit.cell + 1] = table.concat(copies)
  return true
end

function log.summary(limit, cells, verb, cost, refuses, settled)
  local inside, count, latest = inside_of(limit, cells)
  -- A recorded refusal has changed the entries, so its wait was saved in `cells`.
  local asked = 0
  if refuses then asked = settled and cells[-limit.cell] or refusal(limit, cells, verb, cost) end
  local again = cost <= limit.limit and wait(limit, cells, cost, limit.limit, limit.gap, 0) or 0
  if count == 0 then return pack('<I2I7I7I7I7', inside, asked, again, 0, 0) end
  local newest = entry(cells[limit.cell + 1], 0, latest)
  local unused = max(newest + limit.length - now, gap_left(cells, limit.cell, count, latest, limit.gap), 0)
  return pack('<I2I7I7I7I7', inside, asked, again, newest, unused)
end

return log
