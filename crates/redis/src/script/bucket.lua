  -- Token bucket and leaky bucket: `Bucket` in Rust.
  --
  -- Numbers  1 or 2, ticks, whole, part, burst, debt, initial; for the leaky bucket also the patience as whole and part,
  --          and what is free, which serves only to tell numbers apart.
  --          A unit takes `whole` microseconds and `part` ticks, of which there are `ticks` to the microsecond and
  --          fewer in `part`: so any rate is exact, and nothing larger than a few years of microseconds or a burst of
  --          parts has to fit a number.
  -- Cells    the instant at which nothing will be owed, in microseconds (7), and the ticks beyond it (6).
  if kind <= 2 then
    local bucket = { format = 'I7I6', cells = 2 }

    -- The time that so many units take.
    local function ticks(limit, units)
      local whole, part, per_micro = units * limit.whole, units * limit.part, limit.ticks
      if part >= per_micro then
        local carry = floor(part / per_micro)
        return whole + carry, part - carry * per_micro
      end
      return whole, part
    end

    -- Whole units that flow in that time, and what is left of it.
    local function units(limit, whole, part)
      local n = floor((whole * limit.ticks + part) / limit.unit)
      for _ = 1, 8 do
        local w, p = ticks(limit, n)
        if w < whole or (w == whole and p <= part) then break end
        n = n - 1
      end
      for _ = 1, 8 do
        local w, p = ticks(limit, n + 1)
        if w > whole or (w == whole and p > part) then break end
        n = n + 1
      end
      local w, p = ticks(limit, n)
      w, p = whole - w, part - p
      if p < 0 then w, p = w - 1, p + limit.ticks end
      return n, w, p
    end

    -- What is owed now, and whether the clock was set back; then it is as much as can be.
    local function owed(limit, state)
      local whole, part = state[limit.cell] - now, state[limit.cell + 1]
      if whole < 0 then return 0, 0, false end
      local most = limit.believed
      if whole > most or (whole == most and part > limit.deepest_part) then
        return limit.deepest_whole, limit.deepest_part, true
      end
      return whole, part, false
    end

    local function owe(limit, state, whole, part)
      local cell = limit.cell
      if part >= limit.ticks then whole, part = whole + 1, part - limit.ticks end
      state[cell], state[cell + 1] = now + whole, part
    end

    function bucket.read(fields)
      local burst, initial, deepest = fields[5], fields[7], fields[5] + fields[6]
      -- With places for everything, since a table that grows is made anew each time.
      local limit = {
        kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0, capacity = burst, partial = initial < burst,
        ticks = fields[2], whole = fields[3], part = fields[4], unit = fields[3] * fields[2] + fields[4],
        burst = burst, deepest = deepest, initial = initial, deepest_whole = 0, deepest_part = 0, believed = 0,
        patience_whole = fields[8] or false, patience_part = fields[9] or 0,
        full_whole = 0, full_part = 0, seen_whole = 0, seen_part = 0, set_back = false,
      }
      limit.full_whole, limit.full_part = ticks(limit, burst)
      local whole, part = ticks(limit, deepest)
      limit.deepest_whole, limit.deepest_part, limit.believed = whole, part, whole + BELIEVED
      return limit
    end

    function bucket.fresh(limit, state)
      owe(limit, state, ticks(limit, limit.burst - limit.initial))
    end

    -- Whole units that fit on top of what is owed.
    local function available(limit, whole, part)
      local patience = limit.patience_whole
      if patience and (whole > patience or (whole == patience and part > limit.patience_part)) then return 0 end
      local w, p = limit.full_whole - whole, limit.full_part - part
      if p < 0 then w, p = w - 1, p + limit.ticks end
      if w < 0 then return 0 end
      return (units(limit, w, p))
    end

    function bucket.available(limit, state)
      local whole, part = owed(limit, state)
      return available(limit, whole, part)
    end

    function bucket.weigh(limit, state, verb, cost)
      local whole, part, set_back = owed(limit, state)
      limit.seen_whole, limit.seen_part, limit.set_back = whole, part, set_back
      if verb == UP_TO then
        local taken = min(cost, available(limit, whole, part))
        if taken > 0 or cost == 0 then return taken end
        return nil
      end
      local ceiling = verb == EXACTLY and limit.burst or limit.deepest
      if cost > ceiling then return nil end
      local w, p = ticks(limit, ceiling - cost)
      if whole > w or (whole == w and part > p) then return nil end
      local patience = limit.patience_whole
      if patience and verb == EXACTLY and (whole > patience or (whole == patience and part > limit.patience_part)) then
        return nil
      end
      return cost
    end

    function bucket.commit(limit, state, taken)
      local cell, whole, part, per_micro = limit.cell, limit.seen_whole, limit.seen_part, limit.ticks
      if taken > 0 then
        whole, part = whole + taken * limit.whole, part + taken * limit.part
        if part >= per_micro then
          local carry = floor(part / per_micro)
          whole, part = whole + carry, part - carry * per_micro
        end
      elseif not limit.set_back then
        -- Without a taking only that the clock was set back is written down: it flows off from here on.
        return nil
      end
      state[cell], state[cell + 1] = now + whole, part
      return part > 0 and whole + 1 or whole
    end

    function bucket.short(limit, whole, part, cost)
      local per_micro, patience, full = limit.ticks, limit.patience_whole, limit.full_whole
      whole = whole - now
      if whole < 0 then
        whole, part = 0, 0
      elseif whole >= limit.believed then
        return nil
      end
      if cost == 0 or (patience and whole >= patience) then return nil end
      whole, part = whole + cost * limit.whole, part + cost * limit.part
      if part >= per_micro then
        local carry = floor(part / per_micro)
        whole, part = whole + carry, part - carry * per_micro
      end
      if whole > full or (whole == full and part > limit.full_part) then return nil end
      return now + whole, part, part > 0 and whole + 1 or whole
    end

    function bucket.refuse(limit, state)
      return bucket.commit(limit, state, 0)
    end

    function bucket.refund(limit, state, cost)
      local whole, part = owed(limit, state)
      local spent, w, p = units(limit, whole, part)
      -- A part of a unit is owed until all of it has flowed off, so it can be given back.
      if w > 0 or p > 0 then spent = spent + 1 end
      local accepted = min(cost, spent)
      if accepted > 0 then
        w, p = ticks(limit, accepted)
        w, p = whole - w, part - p
        if p < 0 then w, p = w - 1, p + limit.ticks end
        if w < 0 then w, p = 0, 0 end
        owe(limit, state, w, p)
      end
      return accepted
    end

    function bucket.fades(limit, state)
      local whole, part = owed(limit, state)
      return part > 0 and whole + 1 or whole
    end

    -- As many units as were owed, a part of one rounded up.
    function bucket.convert(limit, state, old, before)
      local whole, part = owed(old, before)
      local n, w, p = units(old, whole, part)
      if n > limit.deepest then return owe(limit, state, limit.deepest_whole, limit.deepest_part) end
      part = ceil_of(w * old.ticks + p, limit.unit, old.unit)
      local carry = floor(part / limit.ticks)
      w, p = ticks(limit, n)
      w, p = w + carry, p + part - carry * limit.ticks
      if p >= limit.ticks then w, p = w + 1, p - limit.ticks end
      if w > limit.deepest_whole or (w == limit.deepest_whole and p > limit.deepest_part) then
        w, p = limit.deepest_whole, limit.deepest_part
      end
      owe(limit, state, w, p)
    end

    return bucket
  end

