-- Reads what each live instance of the fleet says of itself.
--
-- KEYS[1]: the live instances: a sorted set, scored by the second of the last beat
-- KEYS[2]: what each instance says of itself: a hash from its id
-- ARGV[1]: after how many seconds without a beat an instance is gone
-- ARGV[2]: the most instances to read
-- Returns: id and text of each

local now = redis.call('TIME')[1]
local oldest, newest = now - ARGV[1], now + ARGV[1]
local answer = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], oldest, newest, 'LIMIT', 0, ARGV[2])) do
    answer[#answer + 1] = id
    answer[#answer + 1] = redis.call('HGET', KEYS[2], id) or ''
end
return answer
