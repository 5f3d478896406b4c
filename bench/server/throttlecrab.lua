-- The request of check.lua in the format of throttlecrab-server.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  local body = string.format('{"key":"client:%d","max_burst":1000000,"count_per_period":1000000,"period":1,"quantity":1}', math.random(100000))
  return wrk.format(nil, nil, nil, body)
end
