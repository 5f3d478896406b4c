  -- Interval bucket: `IntervalBucket` in Rust.
  --
  -- Numbers  9, refill, period, burst, debt, initial, steps (0 aligned, 1 from the first request on), offset, longest wait.
  -- Cells    the mark (7), which is what is owed and the refill for each step of the grid up to then; and from when on steps
  --          are counted (7), 0 if they are aligned. A microsecond brings one at most, so a mark fits a number until 2112.
  if kind == 9 then
    local bucket = { format = 'I7I7', cells = 2 }

    function bucket.read(fields)
      local refill, period, burst, debt, max_wait = fields[2], fields[3], fields[4], fields[5], fields[9]
      local sold = max_wait == 0 and 0 or (floor(max_wait / period) + 1) * refill
      local deepest = burst + max(sold, debt)
      return {
        kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0, capacity = burst, partial = fields[6] < burst,
        refill = refill, period = period, burst = burst, ceiling = burst + debt, initial = fields[6],
        first = fields[7] == 1, offset = fields[8], max_wait = max_wait,
        deepest = deepest, believed = deepest + (floor(BELIEVED / period) + 1) * refill,
        seen_base = 0, seen_elapsed = 0, seen_owed = 0, seen_origin = 0,
      }
    end

    local function owed_by(limit, mark, base)
      local owed = max(mark - base, 0)
      return owed <= limit.believed and owed or limit.deepest
    end

    -- What the present step stands for, how much of it has elapsed, what is owed, and from when on steps are counted.
    local function current_of(limit, mark, origin)
      local period, refill = limit.period, limit.refill
      if limit.first then
        if now < origin then
          -- The clock was set back, by at least as many steps as it takes for so much to be owed; if that is more than a little,
          -- all of it counts from now on.
          local ahead = origin - now + floor(max(mark - limit.deepest, 0) / refill) * period
          if ahead <= BELIEVED then return 0, 0, owed_by(limit, mark, 0), origin end
          return 0, 0, min(mark, limit.deepest), now
        end
        local elapsed = (now - origin) % period
        local base = (now - origin - elapsed) / period * refill
        local owed = owed_by(limit, mark, base)
        if owed == 0 then return 0, 0, 0, now end
        return base, elapsed, owed, origin
      end
      local elapsed = now % period
      local step = (now - elapsed) / period
      local base
      if elapsed >= limit.offset then
        base, elapsed = (step + 1) * refill, elapsed - limit.offset
      else
        base, elapsed = step * refill, elapsed + period - limit.offset
      end
      return base, elapsed, owed_by(limit, mark, base), 0
    end

    local function current(limit, state)
      return current_of(limit, state[limit.cell], state[limit.cell + 1])
    end

    local function write(limit, state, base, owed, origin)
      state[limit.cell], state[limit.cell + 1] = base + owed, origin
    end

    -- How long until so many steps from now on.
    local function until_step(limit, elapsed, origin, count)
      if count == 0 then return 0 end
      return max(origin - now, 0) + limit.period - elapsed + (count - 1) * limit.period
    end

    -- How long until nothing is owed.
    local function paid(limit, elapsed, owed, origin)
      return until_step(limit, elapsed, origin, floor((owed + limit.refill - 1) / limit.refill))
    end

    -- What may be owed, with what is sold from the steps within the longest wait.
    local function room(limit, elapsed, origin)
      if limit.max_wait == 0 then return limit.burst end
      local rest = limit.max_wait - until_step(limit, elapsed, origin, 1)
      if rest < 0 then return limit.burst end
      return limit.burst + (floor(rest / limit.period) + 1) * limit.refill
    end

    local function available(limit, elapsed, owed, origin)
      return min(max(room(limit, elapsed, origin) - owed, 0), limit.burst)
    end

    function bucket.fresh(limit, state)
      local owed = limit.burst - limit.initial
      if owed == 0 then return write(limit, state, 0, 0, 0) end
      local base, _, _, origin = current_of(limit, 0, 0)
      write(limit, state, base, owed, origin)
    end

    function bucket.available(limit, state)
      local _, elapsed, owed, origin = current(limit, state)
      return available(limit, elapsed, owed, origin)
    end

    function bucket.weigh(limit, state, verb, cost)
      local base, elapsed, owed, origin = current(limit, state)
      limit.seen_base, limit.seen_elapsed, limit.seen_owed, limit.seen_origin = base, elapsed, owed, origin
      if verb == UP_TO then
        local taken = min(cost, available(limit, elapsed, owed, origin))
        if taken > 0 or cost == 0 then return taken end
        return nil
      end
      if verb == REGARDLESS then
        if owed + cost <= limit.ceiling then return cost end
        return nil
      end
      if cost <= limit.burst and owed + cost <= room(limit, elapsed, origin) then return cost end
      return nil
    end

    function bucket.commit(limit, state, taken)
      local cell, base, owed, origin = limit.cell, limit.seen_base, limit.seen_owed, limit.seen_origin
      if taken == 0 then
        -- Without a taking only that the clock was set back is written down: it flows off from here on.
        local changed = base + owed < state[cell]
        if limit.first then changed = owed > 0 and (changed or origin ~= state[cell + 1]) end
        if not changed then return nil end
      end
      write(limit, state, base, owed + taken, origin)
      return paid(limit, limit.seen_elapsed, owed + taken, origin)
    end

    function bucket.refuse(limit, state)
      return bucket.commit(limit, state, 0)
    end

    function bucket.refund(limit, state, cost)
      local base, _, owed, origin = current(limit, state)
      local accepted = min(cost, owed)
      if accepted > 0 then write(limit, state, base, owed - accepted, origin) end
      return accepted
    end

    function bucket.fades(limit, state)
      local _, elapsed, owed, origin = current(limit, state)
      return paid(limit, elapsed, owed, origin)
    end

    -- What is owed stays owed, by the steps of the new grid: that of before if it lies as it did.
    function bucket.convert(limit, state, old, before)
      local old_base, _, owed, old_origin = current(old, before)
      local base, _, _, origin = current_of(limit, 0, 0)
      if limit.first and old.first and limit.period == old.period then
        base, origin = old_base / old.refill * limit.refill, old_origin
      end
      write(limit, state, base, min(owed, limit.deepest), origin)
    end

    return bucket
  end

