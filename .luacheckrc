-- The scripts of crates/redis, which Redis runs in Lua 5.1. `chunk` runs another file of the same script; see script.rs.
std = "lua51"
max_line_length = 132
read_globals = { "redis", "struct", "cmsgpack", "KEYS", "ARGV", "chunk" }
