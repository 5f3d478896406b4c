-- Decides group by group. A group of one charge that takes something from limits whose states are a few numbers is decided
-- here; all others, and what is odd about these, are left to `general`.

local others
local call, PASSED, keys = redis.call, '\0\0', KEYS

-- Writes a value that is as good as new after so many microseconds. In steps of a quarter of a second: writing a number out
-- takes a tenth of the time of all, and most are alike. As an instant, since the store would otherwise have to make one of it
-- for its replicas.
local expiries = {}
local function write(key, value, fades)
  local steps = floor((now + fades) / 250000) + 1 + MARGIN
  local expiry = expiries[steps]
  if not expiry then
    expiry = string.format('%.0f', steps * 250)
    expiries[steps] = expiry
  end
  call('SET', keys[key], value, 'PXAT', expiry)
end

while position <= #charges do
  local rest, key, place, verb, cost, after = read('<I2I2BBI7', charges, position)
  local set = sets[place]
  if not set then
    local numbers = ARGV[place + 1]
    set = sets_by_numbers[numbers] or set_of(numbers)
    sets[place], sets_by_numbers[numbers] = set, set
  end
  local state, done, short = states[key], false, set.short
  if short and not state and rest == 0 and verb == EXACTLY then
    -- Most charges are of one bucket and simply pass. That is the short way: from value to value, without a state, and
    -- written at once, so that whoever comes next finds it.
    local value, head, whole, part, fades = values[key], nil, 0, 0, nil
    if not value then
      head = not strangers[key] and not set.partial and set.head
    elseif #value == set.size then
      head, whole, part = read(set.format, value)
    end
    if head == set.head then whole, part, fades = short(set[1], whole, part, cost) end
    if fades then
      value = pack(set.format, head, whole, part)
      values[key] = value
      write(key, value, fades)
      reply[replies + 1], reply[replies + 2] = PASSED, value
      replies, position, done = replies + 2, after, true
    end
  end
  if not done and rest == 0 and verb <= REGARDLESS and set.simple then
    if not state then
      local value = values[key]
      if value then
        if #value == set.size then
          state = { read(set.format, value) }
          if state[1] == set.head then states[key], under[key] = state, set else state = nil end
        end
      elseif not strangers[key] and not set.partial then
        state = { set.head }
        for limits = 1, set.count do set[limits].algorithm.fresh(set[limits], state) end
        states[key], under[key], absent[key] = state, set, true
      end
    elseif under[key] ~= set or moved[key] then
      state = nil
    end
  else
    state = nil
  end
  if done then
    -- Nothing is left to do.
  elseif not state then
    others = others or general()
    position = others.decide(position)
  else
    position = after
    local taken, refusing, count, fades = cost, 0, set.count, nil
    for limits = 1, count do
      local limit = set[limits]
      local passes = limit.weigh(limit, state, verb, cost)
      if not passes then
        refusing = refusing + limit.bit
      elseif passes < taken then
        taken = passes
      end
    end
    if refusing == 0 then
      for limits = 1, count do
        local limit = set[limits]
        local faded = limit.commit(limit, state, taken)
        if faded and (not fades or faded > fades) then fades = faded end
      end
    else
      others = others or general()
      others.refuse(key, set, state, verb, cost, refusing)
    end
    replies = replies + 1
    reply[replies] = refusing == 0 and PASSED or string.char(1, refusing)
    if verb == UP_TO then
      replies = replies + 1
      reply[replies] = pack('<I7', taken)
    end
    local value = bodies[key]
    if fades or not value then
      value = pack(set.format, unpack(state, 1, set.cells))
      bodies[key] = value
    end
    if fades then
      -- Without a taking some limits may not have said how long they need.
      fading[key] = taken > 0 and fades or UNKNOWN
      if absent[key] then absent[key] = false end
    end
    replies = replies + 1
    reply[replies] = value
  end
end

-- Writes what else was changed. Whatever can go wrong with a write goes wrong with the first one: no memory, a replica. Then
-- nothing is written at all, and the call fails as a whole. That the user may set and delete was found out when the connection was
-- made.
for key, state in pairs(states) do
  local set, fades = under[key], fading[key]
  if fades and set.cells > 1 then
    local value = bodies[key]
    if fades == UNKNOWN or not value then
      others = others or general()
      if fades == UNKNOWN then fades = others.fades_of(key, set, state) end
      value = value or others.value_of(set, state)
    end
    write(key, value, fades)
  elseif gone[key] or (fades and values[key]) then
    call('DEL', keys[key])
  end
end
return table.concat(reply)
