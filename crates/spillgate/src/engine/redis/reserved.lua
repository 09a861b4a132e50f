-- Reservations of one token bucket in its steady state, opened, and ended at their estimate or below: no
-- record yet, or one that was written under the very numbers that are asked for, and tokens of whole us.
-- Most reservations are of this kind. They are judged straight from the bytes, and leave and answer what
-- token_bucket.lua and records.lua do.

local RECORD, TRACKED_RECORD, TRACKED = 12, 89, 8
local TRACKED_FORMAT = '>I1I1I6I4I6I4I4I6I4I1I6I4I6I4I6I4I6I4I6I6'
local HEAD, AS_CHARGED, REMEMBERED_US = 40, 2199023255552, 3600000000
local NOT_ENDED = string.rep('\0', 8)

-- The bucket that was looked at last: its level; and where it has had a receipt, its life (else 0).
local used, drained, incarnation
local span_us, low_used, low_drained, before_used, before_drained
local floor_used, floor_drained, floor_before_used, floor_before_drained, returned

-- Whether the bucket of a limit at program[l] is steady.
local function look(value, l)
    local n = program[l + 5]
    if program[l] ~= 1 or program[l + 6] ~= 1 or program[l + 1] >= 15 or lost_us > 0 then
        return false
    end
    used, drained, incarnation = 0, 0, 0
    if not value then
        return true
    end
    local head, high, low, count
    if #value == RECORD then
        head, high, low, count, used = unpack_record('>I1I1I6I2I2', value)
        local code = program[l + 9]
        if code == 0 or head ~= program[l + 1] * 16 or high - high % 16 ~= code * 16 then
            return false
        end
        high = high % 16
    elseif #value == TRACKED_RECORD then
        local part, period_us, burst, span_high, span_low
        head, high, low, part, period_us, count, used, incarnation, burst, span_high, span_low,
            low_used, low_drained, before_used, before_drained, floor_used, floor_drained,
            floor_before_used, floor_before_drained, returned = unpack_record(TRACKED_FORMAT, value)
        if head ~= program[l + 1] * 16 + TRACKED or part ~= 0 or period_us ~= program[l + 8]
            or burst ~= program[l + 3] then
            return false
        end
        span_us = span_high * 281474976710656 + span_low
    else
        return false
    end
    local elapsed = now - high * 281474976710656 - low
    if count ~= program[l + 7] or elapsed < 0 or used > program[l + 4] then
        return false
    end
    local rest = elapsed % n
    used = used - (elapsed - rest) / n
    if used > 0 then
        drained = rest
    else
        used, incarnation = 0, 0
    end
    return true
end

local function less(tokens, parts, other_tokens, other_parts)
    return tokens < other_tokens or (tokens == other_tokens and parts > other_parts)
end

local function lowered(tokens, parts, by_tokens, by_parts, n)
    if not less(by_tokens, by_parts, tokens, parts) then
        return 0, 0
    end
    if parts < by_parts then
        return tokens - by_tokens + 1, parts - by_parts + n
    end
    return tokens - by_tokens, parts - by_parts
end

local function note_low(l)
    local span = program[l + 5] * program[l + 3]
    local since = now - span_us
    if since < span then
        if less(used, drained, low_used, low_drained) then
            low_used, low_drained = used, drained
        end
        if less(used, drained, floor_used, floor_drained) then
            floor_used, floor_drained = used, drained
        end
        return
    end
    if since < 2 * span then
        before_used, before_drained = low_used, low_drained
        floor_before_used, floor_before_drained = floor_used, floor_drained
        span_us = span_us + span
    else
        before_used, before_drained = used, drained
        floor_before_used, floor_before_drained = used, drained
        span_us = now
    end
    low_used, low_drained, floor_used, floor_drained = used, drained, used, drained
end

-- The bucket as it is now into its value.
local function put(key, l)
    if not fresh[key] then
        changed = changed + 1
        changes[changed] = key
    end
    fresh[key] = used * program[l + 5] - drained
    if used == 0 then
        values[key] = false
        return
    end
    local low, high = now_low - drained, now_high
    if low < 0 then
        low, high = low + 281474976710656, high - 1
    end
    local span_low = span_us % 281474976710656
    values[key] = pack_record(TRACKED_FORMAT, program[l + 1] * 16 + TRACKED, high, low, 0,
        program[l + 8], program[l + 7], used, incarnation, program[l + 3],
        (span_us - span_low) / 281474976710656, span_low, low_used, low_drained, before_used,
        before_drained, floor_used, floor_drained, floor_before_used, floor_before_drained, returned)
end

local function write(key, record, ends_us)
    local life_ms = ceil((ends_us - now + REMEMBERED_US) / 1000)
    -- Kept among the driver's, which are above zero.
    local text = lives[-life_ms]
    if not text then
        text = string.format('%.0f', life_ms)
        lives[-life_ms] = text
    end
    redis.call('SET', KEYS[key], record, 'PX', text)
    values[key] = record
end

-- OPEN at program[d], if it is of this kind; where the next operation begins, or nothing.
local function open(d)
    local record, key, l, cost = program[d + 1], program[d + 6], program[d + 8], program[d + 9]
    if values[record] or program[d + 5] ~= 1 or program[d + 10] ~= 0 or cost == 0
        or not look(values[key], l) then
        return
    end
    local charged, mark = 0, 0
    if used + cost <= program[l + 3] then
        if incarnation > 0 then
            note_low(l)
            used, mark = used + cost, returned
        else
            used, incarnation, span_us = used + cost, nonce, now
            low_used, low_drained, before_used, before_drained = used, drained, used, drained
            floor_used, floor_drained, floor_before_used, floor_before_drained = used, drained, used, drained
            returned = 0
        end
        charged = incarnation
        put(key, l)
        local ends_us = now + program[d + 2]
        write(record, pack_record('>I1I7I7c16c8I1I6I6I5', 0, now, ends_us, program[d + 3], NOT_ENDED, 1,
            charged, mark, cost) .. program[d + 4], ends_us)
    end
    out[o], out[o + 1] = charged > 0 and 0 or 3, charged > 0 and 1 or 0
    out[o + 2], out[o + 3], out[o + 4], out[o + 5], out[o + 6] = used, drained, -1, charged, mark
    o = o + 7
    return d + 11
end

-- The most that may come back of a charge: tokens, parts.
local function returnable(l, opened_us, amount, mark, unused)
    local n = program[l + 5]
    local elapsed = now - opened_us
    local parts = elapsed % n
    local tokens = amount - (elapsed - parts) / n
    if tokens <= 0 then
        tokens, parts = 0, 0
    end
    local lowest_used, lowest_drained = 0, 0
    if opened_us >= span_us or opened_us + n * program[l + 3] >= span_us then
        lowest_used, lowest_drained = low_used, low_drained
        local under_used, under_drained = floor_used, floor_drained
        if opened_us < span_us then
            if less(before_used, before_drained, lowest_used, lowest_drained) then
                lowest_used, lowest_drained = before_used, before_drained
            end
            if less(floor_before_used, floor_before_drained, under_used, under_drained) then
                under_used, under_drained = floor_before_used, floor_before_drained
            end
        end
        under_used, under_drained = lowered(under_used, under_drained, max(0, returned - mark), 0, n)
        if less(lowest_used, lowest_drained, under_used, under_drained) then
            lowest_used, lowest_drained = under_used, under_drained
        end
    end
    if less(tokens, parts, lowest_used, lowest_drained) then
        tokens, parts = lowest_used, lowest_drained
    end
    if less(unused, 0, tokens, parts) then
        tokens, parts = unused, 0
    end
    if less(used, drained, tokens, parts) then
        return used, drained
    end
    return tokens, parts
end

-- CLOSE at program[d], if it is of this kind; where the next operation begins, or nothing.
local function close(d)
    local record, key, l, actual = values[program[d + 1]], program[d + 6], program[d + 8], program[d + 9]
    if program[d + 2] ~= 0 or program[d + 5] ~= 1 or not record or #record < HEAD or program[l] ~= 1 then
        return
    end
    local state, opened_us, ends_us = unpack_record('>I1I7I7', record)
    if state ~= 0 or now >= ends_us or byte(record, HEAD) ~= 1 then
        return
    end
    local charged, mark, amount = unpack_record('>I6I6I5', record, HEAD + 1)
    if actual ~= AS_CHARGED and actual ~= amount then
        if actual > amount or not look(values[key], l) then
            return
        end
        if charged > 0 and charged == incarnation and now >= opened_us then
            note_low(l)
            local tokens, parts = returnable(l, opened_us, amount, mark, amount - actual)
            if tokens > 0 then
                local n = program[l + 5]
                used, drained = lowered(used, drained, tokens, parts, n)
                low_used, low_drained = lowered(low_used, low_drained, tokens, parts, n)
                before_used, before_drained = lowered(before_used, before_drained, tokens, parts, n)
                returned = returned + tokens
                put(key, l)
            end
        end
    end
    write(program[d + 1], pack_record('>I1I7I7', 1, opened_us, ends_us) .. string.sub(record, 16, 31)
        .. program[d + 3] .. '\0', ends_us)
    out[o] = 0
    o = o + 1
    return d + 10
end

return function(d)
    if program[d] == 6 then
        return open(d)
    end
    return close(d)
end
