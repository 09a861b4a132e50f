-- Reads what some hours have of some subjects.
--
-- KEYS: the denials of each hour, as denials.lua has them
-- ARGV: the fields to read
-- Returns: for each hour, a list of the values of 'others' and of these fields; nil where there is none

local answer = {}
for place, hour in ipairs(KEYS) do
    answer[place] = redis.call('HMGET', hour, 'others', unpack(ARGV))
end
return answer
