-- The script of crates/redis, which the server runs by Lua 5.1. `chunk` runs another of its files; see script.rs.
std = "lua51"
max_line_length = 132
read_globals = { "redis", "struct", "cmsgpack", "KEYS", "ARGV", "chunk" }
