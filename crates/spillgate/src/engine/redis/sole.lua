-- One charge of one token bucket, which is all that a call of one decision holds as a rule: told in few bytes,
-- judged as token_bucket/lone.lua does, and answered before anything else is made. A state that it does not take
-- is for the rest of the script, told as a program.
--
-- ARGV[1]: 'B', and in so many bytes: now_us 7 (0: ask TIME), nonce 6, the limit's name 1, burst 4, forced_max 6,
--          n 6, count 4, period_us 6, the period's code 1, the cost 4; d is 1

if string.byte(ARGV[1]) == 66 then
    local _, now, nonce, name, burst, most, n, count, period_us, code, cost =
        struct.unpack('>I1I7I6I1I4I6I6I4I6I1I4', ARGV[1])
    local is_callers = now ~= 0
    if not is_callers then
        local time = redis.call('TIME')
        now = time[1] * 1000000 + time[2]
    end
    local now_low = now % 281474976710656
    local now_high = (now - now_low) / 281474976710656
    local is_long = code == 0 or count >= 65536
    local head, counts, bytes, below = name * 4096 + code * 16, count * 65536, 12, 65536
    if is_long then
        head, counts, bytes, below = name * 4096 + 256, 0, 26, 4294967296
    end
    local value = redis.call('GET', KEYS[1])
    local is_ours, used, drained = true, 0, 0
    if value then
        is_ours = #value == bytes
        if is_ours then
            local high, low, used_then, part, period_then, count_then
            if is_long then
                high, low, part, period_then, count_then, used_then = struct.unpack('>I2I6I4I6I4I4', value)
                is_ours = part == 0 and period_then == period_us and count_then == count
            else
                high, low, used_then = struct.unpack('>I2I6I4', value)
            end
            high, used_then = high - head, used_then - counts
            local elapsed = now_low - low
            if high ~= now_high then
                elapsed = elapsed + (now_high - high) * 281474976710656
            end
            is_ours = is_ours and high >= 0 and high <= 15 and elapsed >= 0 and used_then >= 0 and used_then <= most
                and used_then < below
            local rest = elapsed % n
            local left = used_then - (elapsed - rest) / n
            if left > 0 then
                used, drained = left, rest
            end
        end
    end
    local charged = used + cost
    if is_ours and charged < below then
        if charged > burst then
            return { now, 0, used, drained, -1 }
        end
        local low, high = now_low - drained, head + now_high
        if low < 0 then
            low, high = low + 281474976710656, high - 1
        end
        -- Between the time until irrelevant and that and max(1 s, 10 %), and sooner where callers share the
        -- server's clock: what it holds is what it has to look through for what ended.
        local until_ms = (charged * n - drained) / 1000
        local record
        if is_long then
            record = struct.pack('>I2I6I4I6I4I4', high, low, 0, period_us, count, charged)
        else
            record = struct.pack('>I2I6I4', high, low, counts + charged)
        end
        local spare_ms = math.max(is_callers and 500 or math.min(10 + until_ms / 4, 500), until_ms / 20)
        redis.call('SET', KEYS[1], record, 'PX', math.ceil(until_ms + spare_ms))
        return { now, 1, charged, drained, -1 }
    end
    program = { now, nonce, 14, 1, name, 0, burst, most, n, 1, count, period_us, code, 0, 1, 1, 0, 4, cost, 0 }
end
