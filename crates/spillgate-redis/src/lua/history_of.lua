-- Reads the history of one hour.
--
-- KEYS[1]: the counts of the hour, as history.lua has them
-- KEYS[2]: the slot of each rule
-- Returns: the counts, or ''; then name and slot of each rule

local answer = { redis.call('GET', KEYS[1]) or '' }
local rules = redis.call('HKEYS', KEYS[2])
for place, rule in ipairs(rules) do
    answer[2 * place] = rule
    answer[2 * place + 1] = redis.call('HGET', KEYS[2], rule)
end
return answer
