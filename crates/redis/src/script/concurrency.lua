  -- Concurrency: `Concurrency` in Rust, where slots are linked; here leases are a list in the order in which they end.
  --
  -- Numbers  6, limit, lease, debt.
  -- Cells    the weight of all leases in the list, ended or not (4), the number given last (7), and the leases, each its
  --          number (7), its end (7) and its weight (2), after their length in bytes (2).
  -- Told     what is held (2), when the last lease ends (7, or 0), the number given last (7).
  if kind == 6 then
    local find, concat = string.find, table.concat
    local leases = { format = 'I4I7I2c0', cells = 3, varies = true }
    local LEASE = '<I7I7I2'

    function leases.read(fields)
      return { capacity = fields[2], limit = fields[2], lease = fields[3], slots = fields[2] + fields[4] }
    end

    function leases.sound(limit, state)
      return #state[limit.cell + 2] % 16 == 0
    end

    function leases.fresh(limit, state)
      state[limit.cell], state[limit.cell + 1], state[limit.cell + 2] = 0, 0, ''
    end

    -- The weight of leases that have ended, counted from the first until it is enough, and how many they are.
    local function ended(limit, state, enough)
      local list, weight, count = state[limit.cell + 2], 0, 0
      for at = 1, #list, 16 do
        if weight >= enough then break end
        local _, stop, part = read(LEASE, list, at)
        if stop > now then break end
        weight, count = weight + part, count + 1
      end
      return weight, count
    end

    local function held(limit, state)
      return max(state[limit.cell] - ended(limit, state, 1 / 0), 0)
    end

    -- When the last lease ends, or 0.
    local function last_end(limit, state)
      local list = state[limit.cell + 2]
      return #list > 0 and read('<I7', list, #list - 8) or 0
    end

    -- Whether leases last longer than this clock can have promised.
    local function set_back(limit, state)
      return last_end(limit, state) - now > limit.lease + BELIEVED
    end

    -- The list with no lease ending later than that. The order of ends stays.
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

    function leases.available(limit, state)
      return max(limit.limit - held(limit, state), 0)
    end

    function leases.weigh(limit, state, verb, cost)
      local ceiling = verb == REGARDLESS and limit.slots or limit.limit
      if verb == UP_TO then
        if cost == 0 then return 0 end
        cost = min(cost, max(leases.available(limit, state), 1))
      end
      if cost > ceiling then return nil end
      -- Leases that have ended are looked for only as far as their room is needed, which is mostly not at all.
      local missing = state[limit.cell] + cost - ceiling
      if missing > 0 and ended(limit, state, missing) < missing then return nil end
      return cost
    end

    -- Puts a lease where it belongs by its end: at the back, unless the clock or the length was changed.
    local function insert(list, number, stop, weight)
      local at = #list
      while at > 0 and read('<I7', list, at - 8) > stop do at = at - 16 end
      return sub(list, 1, at) .. pack(LEASE, number, stop, weight) .. sub(list, at + 1)
    end

    function leases.commit(limit, state, taken)
      local cell, wrote = limit.cell, false
      -- Even a refusal writes down that the clock was set back: leases last from here on.
      if set_back(limit, state) then
        state[cell + 2] = cut_short(state[cell + 2], now + limit.lease)
        wrote = true
      end
      if taken == 0 then return wrote and leases.fades(limit, state) or nil end
      local weight, count = ended(limit, state, 1 / 0)
      local list, stop = sub(state[cell + 2], 16 * count + 1), now + limit.lease
      local number = max(state[cell + 1] + 1, now)
      state[cell] = max(state[cell] - weight, 0) + taken
      state[cell + 1] = number
      state[cell + 2] = insert(list, number, stop, taken)
      return leases.fades(limit, state)
    end

    function leases.refuse(limit, state)
      return leases.commit(limit, state, 0)
    end

    -- Where the lease with this number is, when it ends and what it weighs; nothing if it has ended.
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

    function leases.renew(limit, state, stamp)
      local list = state[limit.cell + 2]
      local at, stop, weight = lease_of(list, stamp)
      if not at then return false end
      local rest = sub(list, 1, at - 1) .. sub(list, at + 16)
      state[limit.cell + 2] = insert(rest, stamp, max(stop, now + limit.lease), weight)
      return true
    end

    function leases.refund(limit, state, cost, stamp)
      local cell, list = limit.cell, state[limit.cell + 2]
      local at, stop, weight = lease_of(list, stamp)
      if not at then return 0 end
      local given = min(cost, weight)
      if given == 0 then return 0 end
      local rest = given < weight and pack(LEASE, stamp, stop, weight - given) or ''
      state[cell] = max(state[cell] - given, 0)
      state[cell + 2] = sub(list, 1, at - 1) .. rest .. sub(list, at + 16)
      return given
    end

    function leases.fades(limit, state)
      if set_back(limit, state) then return limit.lease end
      return max(last_end(limit, state) - now, 0)
    end

    -- No lease lasts longer than the new length from now. If there are more than the new limit has room for, those that end
    -- last are kept.
    function leases.convert(limit, state, old, before)
      local cell, list = limit.cell, cut_short(before[old.cell + 2], now + limit.lease)
      local weight = before[old.cell]
      if limit.slots < old.slots then
        local from = #list + 1
        weight = 0
        for _ = 1, limit.slots do
          if from == 1 then break end
          local _, stop, part = read(LEASE, list, from - 16)
          if stop <= now then break end
          from, weight = from - 16, min(weight + part, 1024)
        end
        list = sub(list, from)
      end
      state[cell], state[cell + 1], state[cell + 2] = weight, before[old.cell + 1], list
    end

    function leases.tell(limit, state)
      return pack('<I2I7I7', held(limit, state), last_end(limit, state), state[limit.cell + 1])
    end

    return leases
  end

