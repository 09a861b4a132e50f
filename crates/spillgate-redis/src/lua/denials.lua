-- Adds the denials that one instance counted in one minute to those of the fleet.
--
-- An instance sends a minute in parts, in order, and again after a lost reply, so the last part of each instance is
-- kept beside the counts. It is lost only together with them.
--
-- KEYS[1]: the denials of one hour, a hash: each field of 8 bytes is the hash of rule, limit and subject, its value
--          denied (4 bytes), about how many were allowed in the same minutes (4 bytes; 4294967295 if unknown), the
--          minutes 30 to 59 and 0 to 29 of the hour in which it was denied, as bits (4 bytes each), the last reason
--          (1 byte), and rule, limit and subject, sealed; 'others' counts all other denials; 'i' and an instance's
--          id is the last part of that instance
-- ARGV[1]: the field of this instance
-- ARGV[2]: the number of this part: higher than that of each earlier part
-- ARGV[3]: the minute of the hour
-- ARGV[4]: the most fields of the hour; denials of further subjects count as others
-- ARGV[5]: the life of the hour, in ms
-- ARGV[6]: the denials that are counted as others
-- ARGV[7] and so on: field, denied, allowed, reason and sealed text of each subject
-- Returns: 1 if the part was added, 0 if it had been before

local call = redis.call
local COUNT_MAX = 4294967295
local hour = KEYS[1]
local last = call('HGET', hour, ARGV[1])
if last and tonumber(last) >= tonumber(ARGV[2]) then
    return 0
end

local minute = tonumber(ARGV[3])
local fields_max = tonumber(ARGV[4])
local others = tonumber(ARGV[6])
-- A word of 30 bits is exact in a Lua number, and never negative.
local bit_of_minute = 2 ^ (minute % 30)

local fields = { ARGV[1] }
for place = 7, #ARGV, 5 do
    fields[#fields + 1] = ARGV[place]
end
local known = call('HMGET', hour, unpack(fields))
local count = call('HLEN', hour)
local changes = { ARGV[1], ARGV[2] }
for number = 2, #fields do
    local place = 5 * number - 3
    local denied, allowed = tonumber(ARGV[place + 1]), tonumber(ARGV[place + 2])
    local reason, sealed = tonumber(ARGV[place + 3]), ARGV[place + 4]
    local high, low = 0, 0
    local before = known[number]
    if before then
        local denied_before, allowed_before
        denied_before, allowed_before, high, low = struct.unpack('>I4I4I4I4', before)
        denied = math.min(denied_before + denied, COUNT_MAX)
        -- A sum with an unknown count is unknown too.
        allowed = math.min(allowed_before + allowed, COUNT_MAX)
    end
    if before or count < fields_max then
        count = before and count or count + 1
        if minute >= 30 then
            high = math.floor(high / bit_of_minute) % 2 == 1 and high or high + bit_of_minute
        else
            low = math.floor(low / bit_of_minute) % 2 == 1 and low or low + bit_of_minute
        end
        changes[#changes + 1] = fields[number]
        changes[#changes + 1] = struct.pack('>I4I4I4I4B', denied, allowed, high, low, reason) .. sealed
    else
        others = others + denied
    end
end
if others > 0 then
    others = others + (tonumber(call('HGET', hour, 'others')) or 0)
    changes[#changes + 1] = 'others'
    changes[#changes + 1] = string.format('%.0f', others)
end
call('HSET', hour, unpack(changes))
call('PEXPIRE', hour, ARGV[5])
return 1
