-- Fast path: a call that is one charge of one token bucket, in 46 bytes. It runs before the tables and
-- functions of the driver are created. A bucket that is not steady (see bucket_loop.lua) continues as the
-- program that the bytes encode.
--
-- ARGV[1]: 'B', then as integers: given_us 7 bytes, nonce 6, the limit's name 1, burst 4, forced_max 6, n 6, count 4,
--          period_us 6, the period's code 1, cost 4; d is 1

if string.byte(ARGV[1]) == 66 then
    local _, given_us, nonce, name, burst, most, n, count, period_us, code, cost =
        unpack_record('>I1I7I6I1I4I6I6I4I6I1I4', ARGV[1])
    local now, now_low, now_high
    -- @inline read_clock(given_us) -> now, now_low, now_high
    -- record_shape lowers `most` for short records. The program below needs forced_max as it was sent.
    local forced_max, high_now, counts, long_us, format, bytes = most, nil, nil, nil, nil, nil
    -- @inline record_shape(name, burst, 1, count, period_us, code) -> most, high_now, counts, long_us, format, bytes
    local value = redis.call('GET', KEYS[1])
    local used, drained, is_steady = 0, 0, not value or #value == bytes
    if value and is_steady then
        -- @inline read_level(value, 1, format, high_now, most, n, 1, count, counts, long_us) -> used, drained, is_steady
    end
    if is_steady then
        local granted = 1
        -- @inline admit(burst - used, cost) -> granted
        if granted == 0 then
            return { now, 0, used, drained, -1 }
        end
        local record, until_us, step_us, life_us
        -- @inline pack_level(used + cost, drained, format, high_now, n, 1, count, counts, long_us) -> record,
        --     until_us
        -- @inline key_step(until_us, given_us) -> step_us
        -- @inline key_life(until_us, step_us) -> life_us
        redis.call('SET', KEYS[1], record, 'PX', math.ceil(life_us / 1000))
        return { now, 1, used + cost, drained, -1 }
    end
    program = {
        now, nonce, 15, 1, 1, name, 0, burst, forced_max, n, 1, count, period_us, code, CHARGE, 1, 1, 0, 5, cost, 0,
    }
end
