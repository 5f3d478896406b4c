  -- Sliding window: `SlidingWindow` in Rust.
  --
  -- Numbers  4, limit, length, debt, initial.
  -- Cells    the end of the window (7), what was counted in the one before (7), and what is counted in it (7).
  if kind == 4 then
    local window = { format = 'I7I7I7', cells = 3 }

    function window.read(fields)
      return {
        kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0,
        capacity = fields[2], partial = fields[5] < fields[2],
        limit = fields[2], length = fields[3], deepest = fields[2] + fields[4], initial = fields[5],
        most = fields[3] + max(fields[3], BELIEVED), seen_end = 0, seen_previous = 0, seen_used = 0,
      }
    end

    local function next_end(limit)
      return now + limit.length - now % limit.length
    end

    -- The end of the window that is counted in now, and the counts of the one before and of it.
    local function current(limit, state)
      local cell, deepest = limit.cell, limit.deepest
      local stop, previous, used = state[cell], min(state[cell + 1], deepest), min(state[cell + 2], deepest)
      if now < stop and stop <= now + limit.most then return stop, previous, used end
      local next_stop = next_end(limit)
      -- The clock was set back: the counts are those of the present window.
      if stop > next_stop then return next_stop, previous, used end
      if next_stop - stop <= limit.length then return next_stop, used, 0 end
      return next_stop, 0, 0
    end

    local function write(limit, state, stop, previous, used)
      local cell = limit.cell
      state[cell], state[cell + 1], state[cell + 2] = stop, previous, used
    end

    function window.fresh(limit, state)
      local used = limit.limit - limit.initial
      write(limit, state, used == 0 and 0 or next_end(limit), 0, used)
    end

    -- What the window before still weighs, rounded up.
    local function weight(limit, stop, previous)
      if previous == 0 then return 0 end
      return ceil_of(previous, min(stop - now, limit.length), limit.length)
    end

    -- Whole units that fit on top of the estimate.
    local function available(limit, stop, previous, used)
      return max(limit.limit - used - weight(limit, stop, previous), 0)
    end

    function window.available(limit, state)
      local stop, previous, used = current(limit, state)
      return available(limit, stop, previous, used)
    end

    function window.weigh(limit, state, verb, cost)
      local stop, previous, used = current(limit, state)
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

    function window.commit(limit, state, taken)
      local cell, stop, previous, used = limit.cell, limit.seen_end, limit.seen_previous, limit.seen_used
      -- Only a clock that was set back makes a window end earlier, and even a refusal writes that down.
      if taken == 0 and state[cell] <= stop then return nil end
      used = min(used + taken, limit.deepest)
      state[cell], state[cell + 1], state[cell + 2] = stop, previous, used
      if used > 0 then return stop - now + limit.length end
      return previous > 0 and stop - now or 0
    end

    function window.refuse(limit, state)
      return window.commit(limit, state, 0)
    end

    function window.refund(limit, state, cost, stamp)
      local stop, previous, used = current(limit, state)
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
        write(limit, state, stop, previous, used)
      end
      return accepted
    end

    function window.fades(limit, state)
      local stop, previous, used = current(limit, state)
      if used > 0 then return stop - now + limit.length end
      return previous > 0 and stop - now or 0
    end

    -- Windows as long as they were keep both counts; otherwise the estimate, rounded up, counts in the present one.
    function window.convert(limit, state, old, before)
      local stop, previous, used = current(old, before)
      if limit.length == old.length then
        return write(limit, state, stop, min(previous, limit.deepest), min(used, limit.deepest))
      end
      write(limit, state, next_end(limit), 0, min(used + weight(old, stop, previous), limit.deepest))
    end

    return window
  end

