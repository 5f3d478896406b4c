  -- Sliding log: `SlidingLog` in Rust.
  --
  -- Numbers  5, limit, length, debt, initial, gap, 1 if refused attempts count.
  -- Cells    the instants of the entries, oldest first (7 each), after their length in bytes (2).
  -- Told     how many are inside (2), the wait for what was asked (7), the wait for it once more (7), the newest entry (7, or 0).
  if kind == 5 then
    local rep = string.rep
    local log = { format = 'I2c0', cells = 1, varies = true }

    function log.read(fields)
      return {
        capacity = fields[2], partial = fields[5] < fields[2],
        limit = fields[2], length = fields[3], slots = fields[2] + fields[4], initial = fields[5], gap = fields[6],
        counts_refused = fields[7] == 1,
      }
    end

    function log.sound(limit, state)
      return #state[limit.cell] % 7 == 0
    end

    -- How many entries there are, and the instant that later ones count as made at: now, if the clock was set back.
    local function ring(limit, state)
      local entries = state[limit.cell]
      local count = #entries / 7
      if count > 0 and read('<I7', entries, #entries - 6) > now + BELIEVED then return min(count, limit.slots), now end
      return min(count, limit.slots), nil
    end

    -- The entry so many places before the newest, which there is.
    local function entry(entries, place, latest)
      local instant = read('<I7', entries, #entries - 7 * place - 6)
      if latest and instant > latest then return latest end
      return instant
    end

    -- The first place from `low` on, and before `high`, whose entry is no later than `instant`.
    local function later_than(entries, latest, low, high, instant)
      while low < high do
        local middle = floor((low + high) / 2)
        if entry(entries, middle, latest) > instant then low = middle + 1 else high = middle end
      end
      return low
    end

    -- How many entries are inside the window.
    local function used(limit, state)
      local count, latest = ring(limit, state)
      return later_than(state[limit.cell], latest, 0, count, now - limit.length), count, latest
    end

    -- What is asked, with the numbers that apply to it: the cost, the most inside the window, the gap after the previous.
    local function wanted(limit, state, verb, cost)
      if verb == REGARDLESS then return cost, limit.slots, 0 end
      if verb == UP_TO and cost > 0 then cost = min(cost, max(limit.limit - used(limit, state), 1)) end
      return cost, limit.limit, limit.gap
    end

    -- How much of a span is left, counted from the entry at that place once so many further entries are made now.
    local function left(entries, count, latest, written, place, span)
      if place >= written then
        if place - written >= count then return 0 end
        return max(entry(entries, place - written, latest) + span - now, 0)
      end
      -- An entry made now is never before the newest, so that the order holds.
      return max((count > 0 and max(entry(entries, 0, latest), now) or now) + span - now, 0)
    end

    -- How long until it passes, once so many further entries are made now. It is no more than its ceiling.
    local function wait(limit, state, cost, ceiling, gap, written)
      local entries, count, latest = state[limit.cell], ring(limit, state)
      local room = left(entries, count, latest, written, ceiling - cost, limit.length)
      if gap == 0 or cost == 0 then return room end
      return max(room, left(entries, count, latest, written, 0, gap))
    end

    local function push(limit, state, units)
      local entries, count, latest = state[limit.cell], ring(limit, state)
      if latest then
        -- Written down as believed: whatever is ahead was made now.
        local ahead = later_than(entries, nil, 0, count, latest)
        entries = sub(entries, 1, #entries - 7 * ahead) .. rep(pack('<I7', latest), ahead)
      end
      local instant = count > 0 and max(entry(entries, 0), now) or now
      entries = entries .. rep(pack('<I7', instant), min(units, limit.slots))
      state[limit.cell] = sub(entries, -7 * limit.slots)
    end

    function log.fresh(limit, state)
      state[limit.cell] = rep(pack('<I7', now), limit.limit - limit.initial)
    end

    function log.available(limit, state)
      return max(limit.limit - used(limit, state), 0)
    end

    function log.weigh(limit, state, verb, cost)
      if verb == UP_TO and cost == 0 then return 0 end
      local ceiling, gap
      cost, ceiling, gap = wanted(limit, state, verb, cost)
      if cost > ceiling or wait(limit, state, cost, ceiling, gap, 0) > 0 then return nil end
      return cost
    end

    function log.commit(limit, state, taken)
      local _, latest = ring(limit, state)
      if taken == 0 and not latest then return nil end
      push(limit, state, taken)
      return log.fades(limit, state)
    end

    -- The wait that a refusal is told: the attempt will itself be in the log that the next one meets, if it counts.
    local function refusal(limit, state, verb, cost)
      local units, ceiling, gap = wanted(limit, state, verb, cost)
      -- What could not pass anyway is not written down.
      if units > ceiling then return 0, 0 end
      local asked = wait(limit, state, units, ceiling, gap, 0)
      if asked == 0 or not limit.counts_refused then return asked, 0 end
      -- Who takes what fits comes back for one unit.
      return wait(limit, state, verb == UP_TO and 1 or units, ceiling, gap, units), units
    end

    function log.refuse(limit, state, verb, cost)
      local asked, units = refusal(limit, state, verb, cost)
      state[-limit.cell] = asked
      return log.commit(limit, state, units)
    end

    function log.refund(limit, state, cost, stamp)
      local entries = state[limit.cell]
      local inside, _, latest = used(limit, state)
      -- Without a stamp the oldest: nobody knows which one is meant, and what is about to leave grants the least.
      local from, to = inside - min(cost, inside), inside
      if stamp then
        from = later_than(entries, latest, 0, inside, stamp)
        to = later_than(entries, latest, from, inside, stamp - 1)
      end
      local accepted = min(cost, to - from)
      if accepted > 0 then
        state[limit.cell] = sub(entries, 1, #entries - 7 * (from + accepted)) .. sub(entries, #entries - 7 * from + 1)
      end
      return accepted
    end

    function log.fades(limit, state)
      local count, latest = ring(limit, state)
      if count == 0 then return 0 end
      return max(entry(state[limit.cell], 0, latest) + max(limit.length, limit.gap) - now, 0)
    end

    -- Keeps the newest entries that were inside the old window, or that its gap needs, as far as they fit.
    function log.convert(limit, state, old, before)
      local entries = before[old.cell]
      local kept, count, latest = used(old, before)
      if kept == 0 and count > 0 and entry(entries, 0, latest) + max(old.length, old.gap) > now then kept = 1 end
      kept = min(kept, limit.slots)
      if latest then
        local ahead = min(later_than(entries, nil, 0, count, latest), kept)
        local older = sub(entries, #entries - 7 * kept + 1, #entries - 7 * ahead)
        state[limit.cell] = older .. rep(pack('<I7', latest), ahead)
      else
        state[limit.cell] = sub(entries, #entries - 7 * kept + 1)
      end
    end

    function log.tell(limit, state, verb, cost, settled)
      local inside, count, latest = used(limit, state)
      -- Once a refusal is written down, it can no longer be seen what was asked.
      local asked = settled and state[-limit.cell] or refusal(limit, state, verb, cost)
      local again = cost <= limit.limit and wait(limit, state, cost, limit.limit, limit.gap, 0) or 0
      return pack('<I2I7I7I7', inside, asked, again, count > 0 and entry(state[limit.cell], 0, latest) or 0)
    end

    return log
  end

