  -- Fixed window: `FixedWindow` in Rust.
  --
  -- Numbers  3, limit, length, debt, initial, phase: 0 epoch, 1 from the first request on, 2 spread, 3 and more: the window
  --          handed in at that position less 3.
  -- Cells    the end of the window (7) and what is counted in it (7).
  if kind == 3 then
    local window = { format = 'I7I7', cells = 2 }

    function window.read(fields)
      return {
        kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0,
        capacity = fields[2], partial = fields[5] < fields[2],
        limit = fields[2], length = fields[3], deepest = fields[2] + fields[4], initial = fields[5], phase = fields[6],
        slack = max(fields[3], BELIEVED), seen_end = 0, seen_used = 0,
      }
    end

    -- The window handed in for this limit; with none, windows follow one another from the first request on.
    local function handed(limit)
      return limit.phase >= 3 and windows[limit.phase - 2] or nil
    end

    -- The end of the window around now, and what is counted in it, for a count kept in another one.
    local function enter(limit, stop, used)
      local length, given = limit.length, handed(limit)
      local free = not given and (limit.phase == 1 or limit.phase >= 3)
      local next_stop
      if given then
        next_stop = given[2]
      elseif free then
        next_stop = now + length
      else
        local offset = limit.phase == 2 and spread % length or 0
        local elapsed = now % length
        next_stop = now + (elapsed < offset and offset - elapsed or length - (elapsed - offset))
      end
      -- Nothing is counted, or the clock was set back: the count is that of the present window.
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

    -- The end of the window that is counted in now, and the count.
    local function current(limit, state)
      local stop, used = state[limit.cell], min(state[limit.cell + 1], limit.deepest)
      if used > 0 then
        local given = handed(limit)
        local least, most
        if given then
          least, most = given[2], given[2] + max(given[2] - given[1], limit.slack)
        else
          least, most = now + 1, now + limit.length + limit.slack
        end
        if least <= stop and stop <= most then return stop, used end
      end
      return enter(limit, stop, used)
    end

    local function write(limit, state, stop, used)
      state[limit.cell], state[limit.cell + 1] = stop, used
    end

    function window.fresh(limit, state)
      local used = limit.limit - limit.initial
      write(limit, state, used == 0 and 0 or enter(limit, 0, 0), used)
    end

    function window.available(limit, state)
      local _, used = current(limit, state)
      return max(limit.limit - used, 0)
    end

    function window.weigh(limit, state, verb, cost)
      local stop, used = current(limit, state)
      limit.seen_end, limit.seen_used = stop, used
      if verb == UP_TO then
        local taken = min(cost, max(limit.limit - used, 0))
        if taken > 0 or cost == 0 then return taken end
        return nil
      end
      if used + cost <= (verb == EXACTLY and limit.limit or limit.deepest) then return cost end
      return nil
    end

    function window.commit(limit, state, taken)
      local cell, stop, used = limit.cell, limit.seen_end, limit.seen_used
      -- Only a clock that was set back makes a window end earlier, and even a refusal writes that down.
      if taken == 0 and state[cell] <= stop then return nil end
      used = used + taken
      state[cell], state[cell + 1] = stop, used
      if used == 0 then return 0 end
      return stop - now + floor((used - 1) / limit.limit) * limit.length
    end

    function window.refuse(limit, state)
      return window.commit(limit, state, 0)
    end

    function window.refund(limit, state, cost, stamp)
      local stop, used = current(limit, state)
      if stamp and stamp ~= stop then return 0 end
      local accepted = min(cost, used)
      if accepted > 0 then
        write(limit, state, stop, used - accepted)
      end
      return accepted
    end

    function window.fades(limit, state)
      local stop, used = current(limit, state)
      if used == 0 then return 0 end
      return stop - now + floor((used - 1) / limit.limit) * limit.length
    end

    -- Windows that lie as they did keep their count, otherwise it counts in the present one. What was spent beyond the new limit
    -- uses the window up, but is no debt unless it was one before.
    function window.convert(limit, state, old, before)
      local stop, used = current(old, before)
      if limit.phase ~= old.phase or limit.length ~= old.length then stop = enter(limit, 0, 0) end
      local debt = max(used - old.limit, 0)
      write(limit, state, stop, min(min(used - debt, limit.limit) + debt, limit.deepest))
    end

    return window
  end

