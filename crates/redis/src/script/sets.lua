-- Sets of numbers -------------------------------------------------------------------------------------------------------------

local algorithms, sets, sets_by_numbers = {}, {}, {}

-- A set of numbers, ready to decide by. Raises an error for numbers that are not ours. What a value begins with, the version and
-- the numbers, is the first cell of a state, so that reading and writing one takes one step each.
local function set_of(numbers)
  local fields = cmsgpack.unpack(numbers)
  local head = pack('<BI2c0', 1, #numbers, numbers)
  local set = {
    head = head, count = #fields, cells = 1, format = '<c' .. #head, size = 0,
    -- Whether the cells are always of the same length; whether, besides, a charge brings nothing along; whether a new key
    -- has less than all there is; whether a window is spread; the places of the windows handed in; and the short way of a
    -- single limit, if it has one.
    plain = true, simple = true, partial = false, spread = false, windows = NO_WINDOWS, short = false,
  }
  for place = 1, #fields do
    local kind = fields[place][1]
    local algorithm = algorithms[kind]
    if not algorithm then
      if kind > 10 then error('not a limit') end
      algorithm = algorithm_of(kind)
      algorithms[kind] = algorithm
    end
    local limit = algorithm.read(fields[place])
    limit.kind, limit.algorithm, limit.cell, limit.bit = kind, algorithm, set.cells + 1, 2 ^ (place - 1)
    limit.weigh, limit.commit = algorithm.weigh, algorithm.commit
    if limit.partial then set.partial = true end
    if algorithm.varies then set.plain, set.simple = false, false end
    if kind == 3 and limit.phase == 2 then set.spread, set.simple = true, false end
    if kind == 3 and limit.phase > 2 then
      if set.windows == NO_WINDOWS then set.windows = {} end
      set.windows[#set.windows + 1], set.simple = limit.phase - 2, false
    end
    -- How many cells there are may depend on the numbers.
    limit.format, limit.cells = limit.format or algorithm.format, limit.cells or algorithm.cells
    set.format, set.cells = set.format .. limit.format, set.cells + limit.cells
    set[place] = limit
  end
  if set.plain then set.size = struct.size(set.format) end
  if set.count == 1 then set.short = set[1].algorithm.short or false end
  return set
end

-- States ----------------------------------------------------------------------------------------------------------------------
-- By the place of their key: the value that was found; the cells; the set of numbers they are under; whether there is nothing in
-- the store; whether they have to be written at the next touch; how long until they are as good as new, if they have to be
-- written; how they are written, if that is known; whether they have to be deleted unless they are written; and what the last
-- charge brought along. Nil and false are the same.
local values, states, under, absent, moved = {}, {}, {}, {}, {}
local fading, bodies, gone, brought = {}, {}, {}, {}
-- In place of a time that has to be found out.
local UNKNOWN = -1
-- The status of keys that cannot be used.
local strangers = {}

if #KEYS > 0 then
  values = redis.call('MGET', unpack(KEYS))
  -- A key of another type reads as absent, so those that are absent are counted.
  local missing = {}
  for place = 1, #KEYS do
    if not values[place] then missing[#missing + 1] = KEYS[place] end
  end
  if #missing > 0 and redis.call('EXISTS', unpack(missing)) > 0 then
    for place = 1, #KEYS do
      if not values[place] and redis.call('EXISTS', KEYS[place]) == 1 then strangers[place] = 3 end
    end
  end
end

local charges, position = ARGV[1], 1
local reply, replies = { pack('<I7', now) }, 1

