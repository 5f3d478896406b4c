-- Limits without a state: `Limit::Unlimited` and `Limit::DenyAll` in Rust.
--
-- Fields   none besides the kind.

local unlimited = ...
local function nothing() end
local function zero() return 0 end
local function yes() return true end

return {
  format = '', cells = 0, read = function() return {} end, init = nothing, convert = yes, start_with = yes, until_unused = zero,
  weigh = function(_, _, _, cost) return unlimited and cost or nil end, commit = nothing, refuse = nothing,
  refund = function(_, _, cost) return unlimited and cost or 0 end,
  used = function() return 0, 0, 1 end,
}
