-- Reads some of the fields of one hour.
--
-- KEYS[1]: the denials of the hour, as denials.lua has them
-- ARGV[1]: where to go on; 0 to begin
-- ARGV[2]: about how many fields to read
-- Returns: where to go on, 0 after the last; then a list of field and value of each

return redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
