-- Sends a forward-auth check, as a reverse proxy does, for one of 100,000 paths.
wrk.headers["X-Forwarded-Method"] = "GET"
wrk.headers["X-Forwarded-Host"] = "example.org"
wrk.headers["X-Forwarded-Proto"] = "http"
request = function()
  wrk.headers["X-Forwarded-Uri"] = string.format("/v1/mine/%d", math.random(100000))
  return wrk.format("GET")
end
