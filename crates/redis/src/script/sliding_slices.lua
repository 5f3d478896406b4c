  -- Sliding slices: `SlidingSlices` in Rust.
  --
  -- Numbers  10, limit, length of a slice, debt, initial, how many slices make up the window.
  -- Cells    the end of the present slice (7), what is counted in the window (7) and in the present slice (7), and the counts of the
  --          slices before, each in the place of its number modulo how many there are, in as few bytes as hold the limit and its debt.
  if kind == 10 then
    local sliced = { format = '', cells = 0 }

    function sliced.read(fields)
      local precision, deepest, slices = fields[3], fields[2] + fields[4], fields[6]
      local width = 1
      while deepest >= 256 ^ width do width = width + 1 end
      local window = slices * precision
      return {
        kind = 0, algorithm = 0, cell = 0, bit = 0, weigh = 0, commit = 0,
        capacity = fields[2], partial = fields[5] < fields[2],
        limit = fields[2], deepest = deepest, initial = fields[5], precision = precision, slices = slices, window = window,
        most = precision + max(window, BELIEVED), seen_end = 0, seen_sum = 0, seen_present = 0, seen_turn = 0,
        -- Of this limit alone, since others have more or fewer slices.
        format = 'I7I7I7' .. string.rep('I' .. width, slices), cells = 3 + slices,
      }
    end

    local function next_end(limit)
      return now + limit.precision - now % limit.precision
    end

    -- The cell of the count of the slice that ends with that many slices.
    local function place(limit, number)
      return limit.cell + 3 + number % limit.slices
    end

    local function number_of(limit, stop)
      return floor((stop + limit.precision - 1) / limit.precision)
    end

    local function counts(limit, state)
      local sum = min(state[limit.cell + 1], limit.deepest)
      return sum, min(state[limit.cell + 2], sum)
    end

    -- The end of the slice that is counted in now, what is counted in the window and in it, and how many slices began since the
    -- state was written, -1 if none of those before counts any more.
    local function current(limit, state)
      local stop, precision = state[limit.cell], limit.precision
      local sum, present = counts(limit, state)
      if now < stop and stop <= now + limit.most then return stop, sum, present, 0 end
      local next_stop = next_end(limit)
      -- The clock was set back: all of it belongs to the present slice.
      if stop > next_stop then return next_stop, sum, sum, -1 end
      local turns = floor((next_stop - stop + precision - 1) / precision)
      if turns > limit.slices or sum == 0 then return next_stop, 0, 0, -1 end
      local number = number_of(limit, stop)
      for turn = 0, turns - 1 do sum = sum - state[place(limit, number + turn)] end
      return next_stop, max(sum, 0), 0, turns
    end

    -- What counts in the slice so many before the present one.
    local function older(limit, state, stop, turns, back)
      if turns < 0 or back < turns then return 0 end
      if turns > 0 and back == turns then
        local _, present = counts(limit, state)
        return present
      end
      local number = turns == 0 and number_of(limit, stop) or number_of(limit, state[limit.cell])
      return state[place(limit, number + limit.slices - (back - turns))]
    end

    -- Writes what is counted, with the slices moved on to the present one.
    local function write(limit, state, stop, sum, present, turns)
      local cell = limit.cell
      if turns < 0 then
        for slice = 0, limit.slices - 1 do state[cell + 3 + slice] = 0 end
      elseif turns > 0 then
        local number = number_of(limit, state[cell])
        local _, last = counts(limit, state)
        state[place(limit, number)] = last
        for turn = 1, turns - 1 do state[place(limit, number + turn)] = 0 end
      end
      state[cell], state[cell + 1], state[cell + 2] = stop, sum, present
    end

    function sliced.fresh(limit, state)
      local used = limit.limit - limit.initial
      write(limit, state, used == 0 and 0 or next_end(limit), used, used, -1)
    end

    function sliced.available(limit, state)
      local _, sum = current(limit, state)
      return max(limit.limit - sum, 0)
    end

    function sliced.weigh(limit, state, verb, cost)
      local stop, sum, present, turns = current(limit, state)
      limit.seen_end, limit.seen_sum, limit.seen_present, limit.seen_turn = stop, sum, present, turns
      if verb == UP_TO then
        local taken = min(cost, max(limit.limit - sum, 0))
        if taken > 0 or cost == 0 then return taken end
        return nil
      end
      if sum + cost <= (verb == EXACTLY and limit.limit or limit.deepest) then return cost end
      return nil
    end

    function sliced.commit(limit, state, taken)
      local stop, present = limit.seen_end, limit.seen_present
      -- Only a clock that was set back makes a slice end earlier, and even a refusal writes that down.
      if taken == 0 and state[limit.cell] <= stop then return nil end
      write(limit, state, stop, limit.seen_sum + taken, present + taken, limit.seen_turn)
      return present + taken > 0 and stop - now + limit.window or 0
    end

    function sliced.refuse(limit, state)
      return sliced.commit(limit, state, 0)
    end

    function sliced.refund(limit, state, cost, stamp)
      local stop, sum, present, turns = current(limit, state)
      local gap = stop - (stamp or stop)
      -- Slices that lie otherwise by now have none that ends where that one did.
      if gap < 0 or gap % limit.precision ~= 0 then return 0 end
      local back = gap / limit.precision
      if back > limit.slices then return 0 end
      local count = back == 0 and present or older(limit, state, stop, turns, back)
      local accepted = min(cost, count)
      if accepted > 0 then
        write(limit, state, stop, max(sum - accepted, 0), back == 0 and present - accepted or present, turns)
        if back > 0 then state[place(limit, number_of(limit, stop) + limit.slices - back)] = count - accepted end
      end
      return accepted
    end

    function sliced.fades(limit, state)
      local stop, sum, present, turns = current(limit, state)
      if sum == 0 then return 0 end
      if present > 0 then return stop - now + limit.window end
      for back = 1, limit.slices do
        if older(limit, state, stop, turns, back) > 0 then return stop - now + (limit.slices - back) * limit.precision end
      end
      return stop - now + limit.window
    end

    -- Slices as long as they were keep their counts as far as they are still in the window; otherwise all of it counts in the
    -- present one. Where not all may be kept, the oldest goes first.
    function sliced.convert(limit, state, old, before)
      local stop, sum, present, turns = current(old, before)
      local room = limit.deepest
      if limit.precision ~= old.precision then
        sum = min(sum, room)
        return write(limit, state, next_end(limit), sum, sum, -1)
      end
      local kept = {}
      present = min(present, room)
      room = room - present
      for back = 1, min(limit.slices, old.slices) do
        kept[back] = min(older(old, before, stop, turns, back), room)
        room = room - kept[back]
      end
      write(limit, state, stop, limit.deepest - room, present, -1)
      local number = number_of(limit, stop)
      for back = 1, #kept do state[place(limit, number + limit.slices - back)] = kept[back] end
    end

    return sliced
  end

