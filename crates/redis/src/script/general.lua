-- What a plain request does not need: several charges in a group, the other verbs, states to be converted, logs and leases, and
-- windows that a charge brings along. Gives functions: `decide` decides the group at a position, adds what came of it to the
-- reply and gives the position after it; the others are explained where they are.
local function general()
  local char, concat = string.char, table.concat

  -- The set of numbers at that place of the arguments.
  local function set_at(place)
    local set = sets[place]
    if not set then
      local numbers = ARGV[place + 1]
      set = sets_by_numbers[numbers] or set_of(numbers)
      sets[place], sets_by_numbers[numbers] = set, set
    end
    return set
  end

  -- States --------------------------------------------------------------------------------------------------------------------

  local function fresh(set)
    local state = { set.head }
    for place = 1, set.count do set[place].algorithm.fresh(set[place], state) end
    return state
  end

  -- The same under other numbers: each limit takes over from the one in its place, one that has none starts as new. From
  -- another algorithm it takes over what was used up; leases and instants mean nothing there.
  local function converted(set, old_set, before)
    local state = { set.head }
    for place = 1, set.count do
      local limit, old = set[place], old_set[place]
      local algorithm = limit.algorithm
      if old and old.kind == limit.kind then
        algorithm.convert(limit, state, old, before)
      else
        algorithm.fresh(limit, state)
        -- Seven and eight keep nothing.
        if old and old.cells > 0 and limit.cells > 0 then
          local used = min(old.capacity - old.algorithm.available(old, before), limit.capacity)
          local taken = limit.weigh(limit, state, UP_TO, used)
          if taken then limit.commit(limit, state, taken) else algorithm.refuse(limit, state, UP_TO, used) end
        end
      end
    end
    return state
  end

  -- The cells of a value written under these numbers, or nil if they are not ours.
  local function cells_of(set, value)
    if set.plain then
      if #value ~= set.size then return nil end
      return { read(set.format, value) }
    end
    local results = { pcall(read, set.format, value) }
    if not results[1] or results[#results] ~= #value + 1 then return nil end
    local state = {}
    for cell = 1, set.cells do state[cell] = results[cell + 1] end
    for place = 1, set.count do
      local sound = set[place].algorithm.sound
      if sound and not sound(set[place], state) then return nil end
    end
    return state
  end

  -- The cells of a value written under any numbers, and these; or nil if it is not ours.
  local function foreign(value)
    if #value < 3 then return nil end
    local version, length = read('<BI2', value)
    if version ~= 1 or #value < 3 + length then return nil end
    local numbers = sub(value, 4, 3 + length)
    local set = sets_by_numbers[numbers]
    if not set then
      local sound, result = pcall(set_of, numbers)
      if not sound then return nil end
      set = result
      sets_by_numbers[numbers] = set
    end
    return cells_of(set, value), set
  end

  -- The state of the key at that place under that set of numbers, or nil and a status. Who only peeks, or gives back where
  -- nothing was taken, leaves no trace: what it sees depends on what it brought along, and the next may bring something else.
  local function state_at(place, set, verb)
    local state, old_set = states[place], under[place]
    if not state then
      if strangers[place] then return nil, strangers[place] end
      local value = values[place]
      if not value then
        state = fresh(set)
        if verb < REFUND then
          states[place], under[place], absent[place], moved[place] = state, set, true, set.partial
        end
        return state
      end
      state, old_set = foreign(value)
      if not state then
        strangers[place] = 4
        return nil, 4
      end
      states[place], under[place] = state, old_set
    end
    if old_set ~= set then
      -- Numbers that were damaged in a way that still reads as numbers may make no sense to compute with.
      local sound
      sound, state = pcall(converted, set, old_set, state)
      if not sound then
        strangers[place] = 4
        return nil, 4
      end
      if verb < PEEK then states[place], under[place], moved[place], bodies[place] = state, set, true, false end
    end
    return state
  end

  -- Notes that a state was changed, or has to be written because it was moved.
  local function note(key, changed)
    if changed or moved[key] then
      absent[key], fading[key], bodies[key] = false, UNKNOWN, false
    end
  end

  -- Verbs ---------------------------------------------------------------------------------------------------------------------

  -- How much passes, and which limits refuse.
  local function weigh(set, state, verb, cost)
    local taken, refusing = cost, 0
    for place = 1, set.count do
      local limit = set[place]
      local passes = limit.weigh(limit, state, verb, cost)
      if not passes then
        refusing = refusing + limit.bit
      elseif passes < taken then
        taken = passes
      end
    end
    return taken, refusing
  end

  local function commit(key, set, state, taken)
    local changed = false
    for place = 1, set.count do
      local limit = set[place]
      if limit.commit(limit, state, taken) then changed = true end
    end
    note(key, changed)
  end

  -- A refusal is told only to those that refused: they may count it.
  local function refuse(key, set, state, verb, cost, refusing)
    local changed = false
    for place = 1, set.count do
      local limit = set[place]
      if floor(refusing / limit.bit) % 2 == 1 and limit.algorithm.refuse(limit, state, verb, cost) then changed = true end
    end
    note(key, changed)
  end

  -- The least that any of the limits accepted.
  local function refund(key, set, state, cost, stamps)
    -- Nothing was taken from a key that is not there, unless there is nothing to keep.
    if set.cells > 1 and (absent[key] or not states[key]) then return 0 end
    local accepted, changed = cost, false
    for place = 1, set.count do
      local limit = set[place]
      local given = limit.algorithm.refund(limit, state, cost, stamps and stamps[place])
      accepted = min(accepted, given)
      if given > 0 then changed = true end
    end
    note(key, changed)
    return accepted
  end

  -- The cost if all leases were still held, otherwise nothing. Only some limits have leases.
  local function renew(key, set, state, cost, stamps)
    if absent[key] or not states[key] then return 0 end
    local held, changed = nil, false
    for place = 1, set.count do
      local limit = set[place]
      if limit.algorithm.renew then
        local renewed = limit.algorithm.renew(limit, state, stamps and stamps[place])
        held = renewed and held ~= false
        changed = changed or renewed
      end
    end
    note(key, changed)
    return held and cost or 0
  end

  local function reset(key, set)
    local state = fresh(set)
    if states[key] and (gone[key] or not absent[key]) then
      -- A key that starts with less than all fills up from now on, so that has to be written.
      states[key], under[key], moved[key], gone[key] = state, set, set.partial, true
      absent[key], fading[key], bodies[key] = not set.partial, set.partial and UNKNOWN or false, false
    end
    return state
  end

  -- Groups --------------------------------------------------------------------------------------------------------------------

  -- The charges of the group at hand.
  local keys, group_sets, verbs, costs, spreads, group_windows, stamps = {}, {}, {}, {}, {}, {}, {}
  local group_states, taken, refusing = {}, {}, {}

  -- Reads the charges of a group; how many there are, and the position after them.
  local function read_group(at)
    local count = 0
    repeat
      local rest, key, place, verb, cost
      rest, key, place, verb, cost, at = read('<I2I2BBI7', charges, at)
      count = count + 1
      local set = set_at(place)
      keys[count], group_sets[count], verbs[count], costs[count] = key, set, verb, cost
      spreads[count], group_windows[count], stamps[count] = 0, NO_WINDOWS, false
      if set.spread then spreads[count], at = read('<I7', charges, at) end
      if #set.windows > 0 then
        local handed, many = {}, nil
        many, at = read('<B', charges, at)
        for window = 1, many do
          local from, to
          from, to, at = read('<I7I7', charges, at)
          handed[window] = { from, to }
        end
        group_windows[count] = handed
      end
      if verb == REFUND or verb == RENEW then
        local given
        given, at = read('<B', charges, at)
        if given == 1 then
          local list = {}
          for limit = 1, set.count do list[limit], at = read('<I7', charges, at) end
          stamps[count] = list
        end
      end
    until rest == 0
    return count, at
  end

  local function bring_along(charge)
    spread, windows = spreads[charge], group_windows[charge]
  end

  -- Reads the states of a group; a status other than 0 if it cannot be decided.
  local function seat(count)
    for charge = 1, count do
      local key, set = keys[charge], group_sets[charge]
      bring_along(charge)
      if verbs[charge] ~= RESET then
        for _, place in ipairs(set.windows) do
          local window = windows[place]
          if window and (now < window[1] or now >= window[2]) then return 2 end
        end
      end
      local state, status = state_at(key, set, verbs[charge])
      if not state then return status end
      group_states[charge] = state
      -- Needed once more, for the expiry.
      if set.spread or #set.windows > 0 then brought[key] = { spread, windows } end
    end
    return 0
  end

  -- Decides all charges, then commits all or none; whether they only peek, and the first that is refused.
  local function take(count)
    local peeking, refused = verbs[1] > PEEK, nil
    for charge = 1, count do
      bring_along(charge)
      if peeking then verbs[charge] = verbs[charge] - PEEK end
      taken[charge], refusing[charge] = weigh(group_sets[charge], group_states[charge], verbs[charge], costs[charge])
      if refusing[charge] ~= 0 then refused = refused or charge end
    end
    if peeking then return true, refused end
    for charge = 1, count do
      local key, set, state = keys[charge], group_sets[charge], group_states[charge]
      bring_along(charge)
      if refused and charge ~= refused then
        note(key, false)
      else
        -- Others may have been weighed by these limits meanwhile.
        if count > 1 then weigh(set, state, verbs[charge], costs[charge]) end
        if refused then
          refuse(key, set, state, verbs[charge], costs[charge], refusing[charge])
        else
          commit(key, set, state, taken[charge])
        end
      end
    end
    return false, refused
  end

  local function give_back(count)
    for charge = 1, count do
      local key, set = keys[charge], group_sets[charge]
      bring_along(charge)
      taken[charge], refusing[charge] = 0, 0
      if verbs[charge] == REFUND then
        taken[charge] = refund(key, set, group_states[charge], costs[charge], stamps[charge])
      elseif verbs[charge] == RENEW then
        taken[charge] = renew(key, set, group_states[charge], costs[charge], stamps[charge])
      else
        group_states[charge] = reset(key, set)
      end
    end
  end

  -- What is told about the limits of a charge.
  local function tell(set, state, verb, cost, settled)
    if set.plain then return pack(set.format, unpack(state, 1, set.cells)) end
    local parts = {}
    for place = 1, set.count do
      local limit = set[place]
      local algorithm, cell = limit.algorithm, limit.cell
      if algorithm.tell then
        parts[#parts + 1] = algorithm.tell(limit, state, verb, cost, settled)
      elseif limit.cells > 0 then
        parts[#parts + 1] = pack('<' .. limit.format, unpack(state, cell, cell + limit.cells - 1))
      end
    end
    return concat(parts)
  end

  local function decide(at)
    local count, peeking, refused
    count, at = read_group(at)
    local status = seat(count)
    if status == 0 then
      if verbs[1] >= REFUND and verbs[1] < PEEK then
        give_back(count)
      else
        peeking, refused = take(count)
        if refused then status = 1 end
      end
    end
    replies = replies + 1
    reply[replies] = char(status)
    if status > 1 then return at end
    for charge = 1, count do
      local verb = verbs[charge]
      bring_along(charge)
      local told = tell(group_sets[charge], group_states[charge], verb < REFUND and verb or EXACTLY, costs[charge],
        not peeking and charge == refused)
      if verb == UP_TO or verb == REFUND or verb == RENEW then told = pack('<I7', taken[charge]) .. told end
      replies = replies + 1
      reply[replies] = char(refusing[charge]) .. told
    end
    return at
  end

  -- What is written under a key.
  local function value_of(set, state)
    if set.plain then return pack(set.format, unpack(state, 1, set.cells)) end
    local parts = { set.head }
    for place = 1, set.count do
      local limit = set[place]
      local algorithm, cell = limit.algorithm, limit.cell
      if limit.kind == 5 then
        parts[#parts + 1] = pack('<I2c0', #state[cell], state[cell])
      elseif limit.kind == 6 then
        parts[#parts + 1] = pack('<I4I7I2c0', state[cell], state[cell + 1], #state[cell + 2], state[cell + 2])
      elseif limit.cells > 0 then
        parts[#parts + 1] = pack('<' .. limit.format, unpack(state, cell, cell + limit.cells - 1))
      end
    end
    return concat(parts)
  end

  -- How long until a state is as good as new, in microseconds.
  local function fades_of(key, set, state)
    local fades = 0
    spread, windows = 0, NO_WINDOWS
    if brought[key] then spread, windows = brought[key][1], brought[key][2] end
    for place = 1, set.count do fades = max(fades, set[place].algorithm.fades(set[place], state)) end
    return fades
  end

  return { decide = decide, refuse = refuse, value_of = value_of, fades_of = fades_of }
end

