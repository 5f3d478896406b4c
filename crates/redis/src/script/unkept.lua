  -- `Unlimited` and `DenyAll` in Rust: nothing is kept.
  --
  -- Numbers  7 for unlimited, 8 for nothing at all.
  local unlimited = kind == 7
  local function nothing() end
  local function zero() return 0 end
  return {
    format = '', cells = 0, read = function() return {} end, fresh = nothing, convert = nothing, fades = zero,
    weigh = function(_, _, _, cost) return unlimited and cost or nil end, commit = nothing, refuse = nothing,
    refund = function(_, _, cost) return unlimited and cost or 0 end, available = zero,
  }
end

