-- The slow path of `main.lua`. This file handles groups of several charges, verbs that do not take, states whose
-- parameters differ from the charge's parameters, logs and leases, charges with calendar or spread windows, and new
-- keys that do not start full.
--
-- `decide` decides the group at a position, appends the result to the reply and returns the position after the group.

local main = ...
local context, records, values, reply, parsed, parse = main.context, main.records, main.values, main.reply, main.parsed, main.parse
local parameters, parameters_at, now = main.parameters, main.parameters_at, main.context.now
local floor, max, min = math.floor, math.max, math.min
local pack, read, sub, unpack = struct.pack, struct.unpack, string.sub, unpack
local char, concat = string.char, table.concat

local EXACTLY, UP_TO, REGARDLESS = context.EXACTLY, context.UP_TO, context.REGARDLESS
local REFUND, RESET, RENEW, PEEK = 4, 5, 6, 8
local REFUSED, WINDOW_PASSED, NOT_OURS, OTHER_PARAMETERS = 1, 2, 4, 16
local BUCKETS, SLIDING_LOG, CONCURRENCY, SLIDING_SLICES = 2, 5, 6, 10
local NO_WINDOWS, UNKNOWN, VERSION, OLD_VERSION = main.NO_WINDOWS, main.UNKNOWN, main.VERSION, 1

-- States ----------------------------------------------------------------------------------------------------------------------

-- Returns the record of a new key.
local function new_record(limits)
  local record = { limits = limits, write_for = false, limits.head }
  for index = 1, limits.count do limits[index].algorithm.init(limits[index], record) end
  return record
end

-- Selects the charge's calendar windows for a limit of the state, or no windows if the charge's limit has another calendar.
local function use_windows(charge, record, index)
  local limit, own = charge.limits[index], record.limits[index]
  local alike = not own.window or (limit and limit.window == own.window and limit.length == own.length
    and own.algorithm.lies_in(own, record, charge.windows[own.window]))
  context.windows, context.other_calendar = alike and charge.windows or NO_WINDOWS, not alike
end

-- Converts the state of a charge's key to the parameters of the charge, limit by limit. Returns the record, and one bit
-- per limit. A bit is set if the limit cannot hold the used amount, or if its minimum gap after the last request has
-- not passed. A limit for which the state has no counterpart starts unused.
local function converted(charge)
  local limits, record = charge.limits, charge.record
  local cells, overfull = { limits = limits, write_for = false, limits.head }, 0
  for index = 1, limits.count do
    local limit, own = limits[index], record.limits[index]
    local algorithm, fits = limit.algorithm, true
    if not own then
      algorithm.start_with(limit, cells, 0, 0, 1)
    else
      use_windows(charge, record, index)
      if own.algorithm ~= algorithm or not algorithm.convert(limit, cells, own, record) then
        local whole, part, per = own.algorithm.used(own, record)
        context.windows = charge.windows
        fits = algorithm.start_with(limit, cells, whole, part, per)
      end
      context.windows = charge.windows
      if own.algorithm == algorithm and algorithm.gap_left and charge.verb ~= REGARDLESS and charge.cost > 0 then
        fits = fits and algorithm.gap_left(limit, own, record) == 0
      end
    end
    if not fits then
      overfull = overfull + limit.bit
      algorithm.init(limit, cells)
    end
  end
  return cells, overfull
end

-- Number of fields by kind of limit.
local FIELDS = { 7, 10, 6, 5, 7, 4, 1, 1, 9, 6 }

-- Returns whether limits can compute with parameters from a stored value. A damaged value may contain arbitrary fields.
local function is_plausible(fields)
  if type(fields) ~= 'table' or #fields == 0 or #fields > 8 then return false end
  for index = 1, #fields do
    local limit = fields[index]
    if type(limit) ~= 'table' then return false end
    for field = 1, #limit do
      local number = limit[field]
      if type(number) ~= 'number' or number < 0 or number >= 9007199254740992 or floor(number) ~= number then return false end
    end
    local kind = limit[1]
    if #limit ~= FIELDS[kind] then return false end
    if #limit > 1 and (limit[2] == 0 or limit[3] + (kind <= BUCKETS and limit[4] or 0) == 0) then return false end
    if (kind == SLIDING_LOG or kind == CONCURRENCY) and limit[2] + limit[4] > 1024 then return false end
    if kind == SLIDING_SLICES and (limit[6] == 0 or limit[6] > 64) then return false end
  end
  return true
end

-- Returns the record of a value with these parameters, or nil if the value does not have the format of these
-- parameters.
local function record_under(limits, value)
  if limits.fixed then
    if #value ~= limits.size then return nil end
    return { limits = limits, write_for = false, read(limits.format, value) }
  end
  local results = { pcall(read, limits.format, value) }
  if not results[1] or results[#results] ~= #value + 1 then return nil end
  local cells = { limits = limits, write_for = false }
  for cell = 1, limits.cells do cells[cell] = results[cell + 1] end
  for index = 1, limits.count do
    local sound = limits[index].algorithm.sound
    if sound and not sound(limits[index], cells) then return nil end
  end
  return cells
end

-- Returns the record of a value with its own parameters, or nil if the value is not a valid state.
local function decode(value)
  if #value < 3 then return nil end
  local version, length = read('<BI2', value)
  if version ~= VERSION or #value < 3 + length then return nil end
  local bytes = sub(value, 4, 3 + length)
  local limits = parsed[bytes]
  if not limits then
    local readable, fields = pcall(cmsgpack.unpack, bytes)
    if not readable or not is_plausible(fields) then return nil end
    readable, limits = pcall(parse, bytes)
    if not readable then return nil end
  end
  return record_under(limits, value)
end

-- Returns whether the state of a record is unused.
local function is_unused(charge, record)
  for index = 1, record.limits.count do
    local own = record.limits[index]
    use_windows(charge, record, index)
    if own.algorithm.until_unused(own, record) > 0 then return false end
  end
  return true
end

-- Returns the record of a charge's key, or nil and a status. A new record is kept in `records` only if the verb can
-- take tokens, so not for a peek, refund, renewal or reset. The state of a new key depends on the charge that creates
-- the key.
local function record_of(charge)
  local key, limits = charge.key, charge.limits
  local record, value, replaced = records[key], values[key], false
  if not record and value then
    if #value > 0 and read('<B', value) == OLD_VERSION then
      value, values[key], replaced = false, false, true
    else
      record = decode(value) or { status = NOT_OURS }
      records[key] = record
    end
  end
  if record then
    if record.status then return nil, record.status end
    local known = record.write_for or value or record.limits == limits
    if known and limits.partial and record.limits ~= limits and (charge.verb < REFUND or charge.verb > PEEK) then
      -- Under limits with an initial amount, an unused key with other limits counts as a new key.
      known = not is_unused(charge, record)
      context.windows = charge.windows
      if not known and charge.verb < REFUND then values[key] = false end
    end
    if known then return record end
  end
  local new = new_record(limits)
  if limits.partial then new.begins = true end
  if replaced or (record and record.delete) then new.delete = true end
  if charge.verb < REFUND then records[key] = new end
  return new
end

-- Returns the stored value of a record. With `for_reply`, leases are replaced by their summaries.
local function value_of(record, for_reply)
  local limits = record.limits
  if limits.fixed then return pack(limits.format, unpack(record, 1, limits.cells)) end
  local parts = { limits.head }
  for index = 1, limits.count do
    local limit = limits[index]
    local cell = limit.cell
    if for_reply and limit.kind == CONCURRENCY then
      parts[#parts + 1] = limit.algorithm.summary(limit, record)
    elseif limit.algorithm.encode then
      parts[#parts + 1] = limit.algorithm.encode(limit, record)
    elseif limit.cells > 0 then
      parts[#parts + 1] = pack('<' .. limit.format, unpack(record, cell, cell + limit.cells - 1))
    end
  end
  return concat(parts)
end

-- Schedules a record for writing if its state changed, or if it is a new record that must be written.
local function note(key, record, changed)
  if changed or record.begins then values[key], record.write_for, record.begins = false, UNKNOWN, nil end
end

-- Verbs -----------------------------------------------------------------------------------------------------------------------

-- Returns the admitted amount, and one bit per limit, set if the limit refuses.
local function weigh(limits, cells, verb, cost, overfull)
  local taken, refusing = cost, 0
  for index = 1, limits.count do
    local limit = limits[index]
    local passes = limit.weigh(limit, cells, verb, cost)
    if overfull > 0 and floor(overfull / limit.bit) % 2 == 1 then passes = verb == UP_TO and cost == 0 and 0 or nil end
    if not passes then
      refusing = refusing + limit.bit
    elseif passes < taken then
      taken = passes
    end
  end
  return taken, refusing
end

local function commit(key, record, taken)
  local limits, unused = record.limits, false
  for index = 1, limits.count do
    local limit = limits[index]
    local time_left = limit.commit(limit, record, taken)
    if time_left and (not unused or time_left > unused) then unused = time_left end
  end
  note(key, record, unused)
  -- If nothing was taken, some limits may not have returned a time.
  if unused and taken > 0 then record.write_for = unused end
end

-- Records a refusal in the limits that refused, directly after `weigh`.
local function refuse(key, record, verb, cost, refusing)
  local limits, changed = record.limits, false
  for index = 1, limits.count do
    local limit = limits[index]
    if floor(refusing / limit.bit) % 2 == 1 and limit.algorithm.refuse(limit, record, verb, cost) then changed = true end
  end
  note(key, record, changed)
end

-- Updates a state that keeps its own parameters after a charge with other parameters. Adds refused attempts if both
-- limits are logs and the charge's limit counts refused attempts. Repairs the state if the clock was set back.
local function leave(charge)
  local record, changed = charge.record, false
  for index = 1, min(charge.limits.count, record.limits.count) do
    local limit, own = charge.limits[index], record.limits[index]
    local refuses = floor(charge.refusing / limit.bit) % 2 == 1
    if charge.refusing == 0 or refuses then
      local attempts = 0
      use_windows(charge, record, index)
      own.weigh(own, record, EXACTLY, 0)
      if refuses and limit.algorithm == own.algorithm and limit.algorithm.attempts then
        attempts = limit.algorithm.attempts(limit, own, record, charge.verb, charge.cost)
      end
      if own.commit(own, record, attempts) then changed = true end
    end
  end
  note(charge.key, record, changed)
end

-- Returns the stamp in the form that a limit uses. Stamps are sent as quotient and remainder by 1000. A lease stamp is
-- a number, so it needs quotient and remainder. Any other stamp is an instant in nanoseconds, and the quotient is the
-- instant in microseconds.
local function stamp_of(limit, stamps, index)
  local stamp = stamps[index]
  return limit.kind == CONCURRENCY and stamp[1] * 1000 + stamp[2] or stamp[1]
end

-- Returns the number of limits that the key had when these stamps were made. The key may have more limits by now.
local function count_of(limits, stamps)
  return stamps and min(limits.count, #stamps) or limits.count
end

-- Refunds a charge. Returns the smallest amount that any limit accepted.
local function refund(key, record, cost, stamps)
  local limits = record.limits
  -- A key that does not exist was never charged, unless its limits have no state.
  if limits.cells > 1 and not (record.write_for or values[key]) then return 0 end
  local accepted, changed = cost, false
  for index = 1, count_of(limits, stamps) do
    local limit = limits[index]
    local given = limit.algorithm.refund(limit, record, cost, stamps and stamp_of(limit, stamps, index))
    accepted = min(accepted, given)
    if given > 0 then changed = true end
  end
  note(key, record, changed)
  return accepted
end

-- Renews leases. Returns the cost if all leases were still held, otherwise 0. Limits without leases are skipped.
local function renew(key, record, cost, stamps)
  if not (record.write_for or values[key]) then return 0 end
  local limits, held, changed = record.limits, nil, false
  for index = 1, count_of(limits, stamps) do
    local limit = limits[index]
    if limit.algorithm.renew then
      local renewed = limit.algorithm.renew(limit, record, stamps and stamp_of(limit, stamps, index))
      held = renewed and held ~= false
      changed = changed or renewed
    end
  end
  note(key, record, changed)
  return held and cost or 0
end

local function reset(charge)
  local key, limits, record = charge.key, charge.limits, charge.record
  local new = new_record(limits)
  if record.write_for or values[key] or record.delete then
    values[key], new.begins, new.delete = false, limits.partial or nil, true
    if limits.spread or limits.windows ~= NO_WINDOWS then new.spread, new.windows = charge.spread, charge.windows end
    records[key] = new
  end
  charge.record = new
end

-- Groups ----------------------------------------------------------------------------------------------------------------------

-- The charges of the current group. The tables are reused by the next group. Fields:
--   key, limits, verb, cost, spread, windows, stamps, latest   as sent
--   record            the record of the key
--   new               the converted record, if the state has other parameters
--   state             if the state keeps other parameters: its form in the reply; otherwise false
--   taken, refusing   the result
local group = {}
-- has_windows: a charge of the group has spread or calendar windows. is_foreign: a state of the group has other parameters.
local has_windows, is_foreign = false, false

-- Reads the charges of a group. Returns the number of charges and the position after the group.
local function read_group(at)
  local charges, count = ARGV[1], 0
  local rest, index
  has_windows = false
  repeat
    count = count + 1
    local charge = group[count]
    if not charge then
      charge = {
        key = 0, limits = 0, verb = 0, cost = 0, spread = 0, windows = NO_WINDOWS, stamps = false, latest = false, record = false,
        state = false, new = false, taken = 0, refusing = 0,
      }
      group[count] = charge
    end
    rest, charge.key, index, charge.verb, charge.cost, at = read('<I2I2BBI7', charges, at)
    local limits = parameters[index] or parameters_at(index)
    charge.limits = limits
    if limits.spread or limits.windows ~= NO_WINDOWS then
      has_windows, charge.spread, charge.windows = true, 0, NO_WINDOWS
      if limits.spread then charge.spread, at = read('<I7', charges, at) end
      if limits.windows ~= NO_WINDOWS then
        local windows, many = {}
        many, at = read('<B', charges, at)
        for window = 1, many do
          local from, to
          from, to, at = read('<I7I7', charges, at)
          windows[window] = { from, to }
        end
        charge.windows = windows
      end
    elseif charge.spread ~= 0 or charge.windows ~= NO_WINDOWS then
      charge.spread, charge.windows = 0, NO_WINDOWS
    end
    if charge.verb == REFUND or charge.verb == RENEW then
      local given
      charge.stamps, charge.latest = false, false
      given, at = read('<B', charges, at)
      if given > 0 then
        local stamps, many = {}
        many, at = read('<B', charges, at)
        for stamp = 1, many do
          local thousands, units
          thousands, units, at = read('<I7I2', charges, at)
          stamps[stamp] = { thousands, units }
        end
        charge.stamps = stamps
        if given == 2 then charge.latest, at = read('<I7', charges, at) end
      end
    end
  until rest == 0
  return count, at
end

-- Passes the spread and the windows of a charge to the algorithms.
local function use(charge)
  if has_windows then context.spread, context.windows = charge.spread, charge.windows end
end

-- Returns whether a calendar window of the charge does not contain the current time.
local function window_passed(charge)
  for _, index in ipairs(charge.limits.windows) do
    local window = charge.windows[index]
    if window and (now < window[1] or now >= window[2]) then return true end
  end
  return false
end

-- Finds the states of a group. Returns 0, or the status of a group that cannot be decided.
local function find_states(count)
  is_foreign = false
  for number = 1, count do
    local charge = group[number]
    use(charge)
    if has_windows and charge.verb ~= RESET and window_passed(charge) then return WINDOW_PASSED end
    local record, status = record_of(charge)
    if not record then return status end
    charge.record, charge.state = record, false
    if record.limits ~= charge.limits then
      is_foreign = true
    elseif has_windows then
      -- The expiry of the record may depend on its spread and its windows.
      record.spread, record.windows = charge.spread, charge.windows
    end
  end
  return 0
end

-- Weighs all charges, then commits all of them or none. If any charge is refused, the refused charges record their
-- refusal. All `UP_TO` charges take the smallest amount that any of them can take. Returns whether any charge is
-- refused.
local function take(count)
  local peeking, refused, least = group[1].verb > PEEK, false, nil
  for number = 1, count do
    local charge = group[number]
    local record, limits = charge.record, charge.limits
    local cells, overfull = record, 0
    use(charge)
    if peeking then charge.verb = charge.verb - PEEK end
    if record.limits ~= limits then
      cells, overfull = converted(charge)
      charge.new = cells
    end
    charge.taken, charge.refusing = weigh(limits, cells, charge.verb, charge.cost, overfull)
    refused = refused or charge.refusing ~= 0
    if charge.verb == UP_TO then least = min(least or charge.taken, charge.taken) end
  end
  if least and not refused and not peeking then
    for number = 1, count do
      if group[number].verb == UP_TO then group[number].taken = least end
    end
  end
  if is_foreign then
    for number = 1, count do
      local charge = group[number]
      -- If a state keeps other parameters, Rust computes the answer from the state before the charge.
      if charge.record.limits ~= charge.limits and (peeking or refused or charge.taken == 0 or charge.limits.cells == 1) then
        charge.state = value_of(charge.record, true)
      end
    end
  end
  if peeking then return refused end
  for number = 1, count do
    local charge = group[number]
    local key, record, limits, verb, cost = charge.key, charge.record, charge.limits, charge.verb, charge.cost
    use(charge)
    if refused and charge.refusing == 0 then
      note(key, record, false)
    elseif record.limits == limits then
      -- Weighs again, because another charge with these limits may have overwritten the cached state of the limits.
      if count > 1 then weigh(limits, record, verb, cost, 0) end
      if refused then
        refuse(key, record, verb, cost, charge.refusing)
      else
        commit(key, record, charge.taken)
      end
    elseif charge.state then
      leave(charge)
    else
      local new = charge.new
      if count > 1 then weigh(limits, new, verb, cost, 0) end
      if has_windows then new.spread, new.windows = charge.spread, charge.windows end
      if record.delete then new.delete = true end
      records[key], charge.record, new.gap_passed = new, new, nil
      commit(key, new, charge.taken)
    end
  end
  return refused
end

local function give_back(count)
  for number = 1, count do
    local charge = group[number]
    use(charge)
    charge.taken, charge.refusing = 0, 0
    if charge.verb == REFUND then
      if not charge.latest or context.now <= charge.latest then
        charge.taken = refund(charge.key, charge.record, charge.cost, charge.stamps)
      end
    elseif charge.verb == RENEW then
      charge.taken = renew(charge.key, charge.record, charge.cost, charge.stamps)
    else
      reset(charge)
    end
    if charge.record.limits ~= charge.limits then charge.state = value_of(charge.record, true) end
  end
end

-- Returns the reply form of a state with the charge's parameters.
local function summary(charge, settled)
  local key, limits, record = charge.key, charge.limits, charge.record
  if limits.fixed then
    -- For a peek, an unused key with other limits counts as new, but keeps its stored value.
    local value = records[key] == record and values[key]
    if not value then
      value = pack(limits.format, unpack(record, 1, limits.cells))
      if record.write_for then values[key] = value end
    end
    return value
  end
  local parts, verb = {}, charge.verb < REFUND and charge.verb or EXACTLY
  for index = 1, limits.count do
    local limit = limits[index]
    local algorithm, cell = limit.algorithm, limit.cell
    if algorithm.summary then
      local refuses = charge.refusing > 0 and floor(charge.refusing / limit.bit) % 2 == 1
      parts[#parts + 1] = algorithm.summary(limit, record, verb, charge.cost, refuses, settled)
    elseif limit.cells > 0 then
      parts[#parts + 1] = pack('<' .. limit.format, unpack(record, cell, cell + limit.cells - 1))
    end
  end
  return concat(parts)
end

local function decide(at)
  local count, refused
  count, at = read_group(at)
  local verb, status = group[1].verb, find_states(count)
  if status == 0 then
    if verb >= REFUND and verb < PEEK then
      give_back(count)
    else
      refused = take(count)
      if refused then status = REFUSED end
    end
  end
  local replies, foreign = #reply + 1, false
  if status > REFUSED then
    reply[replies] = char(status)
  else
    for number = 1, is_foreign and count or 0 do foreign = foreign or group[number].state end
    reply[replies] = char(foreign and status + OTHER_PARAMETERS or status)
    for number = 1, count do
      local charge = group[number]
      local state = charge.state
      if state then
        state = pack('<I2c0', #state, state)
      else
        use(charge)
        state = summary(charge, verb < PEEK and charge.refusing > 0)
        if foreign then state = '\0\0' .. state end
      end
      if charge.verb == UP_TO or charge.verb == REFUND or charge.verb == RENEW then state = pack('<I7', charge.taken) .. state end
      reply[replies + number] = char(charge.refusing) .. state
    end
  end
  if has_windows then context.spread, context.windows = 0, NO_WINDOWS end
  return at
end

-- Returns the time until the state of a record is unused, in microseconds.
local function until_unused(record)
  local limits, unused = record.limits, 0
  context.spread, context.windows = record.spread or 0, record.windows or NO_WINDOWS
  for index = 1, limits.count do unused = max(unused, limits[index].algorithm.until_unused(limits[index], record)) end
  return unused
end

-- Returns the value of a state with the current floor of its pool applied, or nil if the value is not a state.
local function touched(pools, pool, state)
  local record = decode(state)
  if not record then return nil end
  pools.touch(record.limits, record, pool)
  return value_of(record)
end

-- Returns the combined value of a state and its pool, and the time until both are unused.
local function with_pool(pools, pool, value)
  local record = decode(value)
  pools.raise_floor(record.limits, record, pool, now)
  return pools.close(pool, value_of(record)), max(until_unused(record), pools.needed_until(pool) - now)
end

return {
  decide = decide, refuse = refuse, value_of = value_of, until_unused = until_unused, touched = touched, with_pool = with_pool,
}
