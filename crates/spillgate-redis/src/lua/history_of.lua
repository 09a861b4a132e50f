-- Reads the history of one hour.
--
-- KEYS[1]: the counts of the hour, as history.lua has them
-- KEYS[2]: the slot of each rule
-- ARGV[1]: the bytes of an hour
-- ARGV[2]: the most rules of an hour
-- Returns: the counts, or ''; then name and slot of each rule

local answer = { redis.call('GETRANGE', KEYS[1], 0, ARGV[1] - 1) }
-- Another writer of the store may have made it larger.
if redis.call('HLEN', KEYS[2]) > tonumber(ARGV[2]) then
    return answer
end
local rules = redis.call('HKEYS', KEYS[2])
for place, rule in ipairs(rules) do
    answer[2 * place] = rule
    answer[2 * place + 1] = redis.call('HGET', KEYS[2], rule)
end
return answer
