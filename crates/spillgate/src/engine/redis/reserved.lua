-- Reservations of one token bucket in its steady state, opened, and ended at their estimate or below: no
-- record yet, or one that was written under the very numbers that are asked for, and tokens of whole us.
-- Most reservations are of this kind. They are judged straight from the bytes, and leave and answer what
-- token_bucket.lua and records.lua do.
--
-- A level is one number here: the us until the bucket is untouched.

-- What tells the head of a record with a life from one without (kind 9), and such a record.
local TRACKED_HEAD, TRACKED_FORMAT = 2304, '>I2I6I4I6I4I7I7I7I7I7I6'
-- A record's head, and with what one tier was charged.
local HEAD, OPEN = 40, 57
local AS_CHARGED, REMEMBERED_US = 2199023255552, 3600000000
local NOT_ENDED, ENDED, NONE = string.rep('\0', 8), '\1', '\0'

local function limit_at(l)
    local limit = wholes[l]
    if limit == nil then
        return whole(l)
    end
    return limit
end

-- The bucket of a limit, if it is steady: its level; and where it has had a receipt, its life: incarnation (else 0),
-- when its span began, the lows of this span and of the one before, the floors of both, and what came back.
local function look(value, limit)
    if not value then
        return 0, 0
    end
    local size = #value
    local high, low, used, incarnation, burst, span_us, lowest, before, floor_us, floor_before, returned
    if size == 12 then
        high, low, used = unpack_record('>I2I6I4', value)
        incarnation = 0
    elseif size == 63 then
        high, low, used, incarnation, burst, span_us, lowest, before, floor_us, floor_before, returned =
            unpack_record(TRACKED_FORMAT, value)
        if burst ~= limit[2] then
            return
        end
        high = high - TRACKED_HEAD
    else
        return
    end
    used = used - limit[5]
    local elapsed = now_low - low
    if high - limit[1] ~= now_high or elapsed < 0 or used < 0 or used > limit[3] then
        return
    end
    local level = used * limit[4] - elapsed
    if level <= 0 then
        return 0, 0
    end
    return level, incarnation, span_us, lowest, before, floor_us, floor_before, returned
end

-- The lows and floors just before a write.
local function noted(limit, level, span_us, low, before, floor_us, floor_before)
    local span = limit[4] * limit[2]
    local since = now - span_us
    if since < span then
        return span_us, level < low and level or low, before, level < floor_us and level or floor_us, floor_before
    end
    if since < 2 * span then
        return span_us + span, level, low, level, floor_us
    end
    return now, level, level, level, level
end

-- The bucket as it is now into its value.
local function put(key, limit, used, drained, incarnation, span_us, low, before, floor_us, floor_before, returned)
    local boundary, high = now_low - drained, limit[1] + TRACKED_HEAD + now_high
    if boundary < 0 then
        boundary, high = boundary + 281474976710656, high - 1
    end
    note_change(key, pack_record(TRACKED_FORMAT, high, boundary, limit[5] + used, incarnation, limit[2], span_us,
        low, before, floor_us, floor_before, returned), used * limit[4] - drained)
end

-- OPEN at program[d], if it is of this kind; where the next operation begins, or nothing.
local function open(d)
    local program, out = program, out
    local key, l, cost = program[d + 6], program[d + 8], program[d + 9]
    local record, limit = program[d + 1], limit_at(l)
    if values[record] or not limit or program[d + 5] ~= 1 or program[d + 10] ~= 0 or cost == 0 or lost_us > 0 then
        return
    end
    local level, incarnation, span_us, low, before, floor_us, floor_before, returned = look(values[key], limit)
    if not level then
        return
    end
    local n = limit[4]
    local drained = -level % n
    local used = (level + drained) / n
    local opened, charged, mark = 3, 0, 0
    if used + cost <= limit[2] then
        used = used + cost
        if incarnation > 0 then
            mark = returned
            span_us, low, before, floor_us, floor_before =
                noted(limit, level, span_us, low, before, floor_us, floor_before)
        else
            low = used * n - drained
            incarnation, span_us, before, floor_us, floor_before, returned = nonce, now, low, low, low, 0
        end
        opened, charged = 0, incarnation
        put(key, limit, used, drained, incarnation, span_us, low, before, floor_us, floor_before, returned)
        local lasting_us = program[d + 2]
        local text = lives[-lasting_us]
        if not text then
            -- Kept among the driver's, which are above zero.
            text = string.format('%.0f', ceil((lasting_us + REMEMBERED_US) / 1000))
            lives[-lasting_us] = text
        end
        local body = pack_record('>I1I7I7c16c8I1I6I6I5c0', 0, now, now + lasting_us, program[d + 3], NOT_ENDED, 1,
            charged, mark, cost, program[d + 4])
        redis.call('SET', KEYS[record], body, 'PX', text)
        values[record] = body
    end
    out[o], out[o + 1], out[o + 2], out[o + 3] = opened, charged > 0 and 1 or 0, used, drained
    out[o + 4], out[o + 5], out[o + 6] = -1, charged, mark
    o = o + 7
    return d + 11
end

-- The most that may come back of a charge: us.
local function returnable(limit, level, opened_us, amount, mark, unused,
    span_us, low, before, floor_us, floor_before, returned)
    local n = limit[4]
    local most = max(0, amount * n - (now - opened_us))
    if opened_us >= span_us or opened_us + n * limit[2] >= span_us then
        if opened_us < span_us then
            low = before < low and before or low
            floor_us = floor_before < floor_us and floor_before or floor_us
        end
        most = max(most, low, floor_us - max(0, returned - mark) * n)
    end
    return min(most, unused * n, level)
end

-- CLOSE at program[d], if it is of this kind; where the next operation begins, or nothing.
local function close(d)
    local program = program
    local record, key, l, actual = values[program[d + 1]], program[d + 6], program[d + 8], program[d + 9]
    if program[d + 2] ~= 0 or program[d + 5] ~= 1 or not record or #record < OPEN or program[l] ~= 1 then
        return
    end
    local state, opened_us, ends_us = unpack_record('>I1I7I7', record)
    local count, charged, mark, amount = unpack_record('>I1I6I6I5', record, HEAD)
    if state ~= 0 or now >= ends_us or count ~= 1 then
        return
    end
    if actual ~= AS_CHARGED and actual ~= amount then
        local limit = limit_at(l)
        if not limit or actual > amount or lost_us > 0 then
            return
        end
        local level, incarnation, span_us, low, before, floor_us, floor_before, returned = look(values[key], limit)
        if not level then
            return
        end
        if charged > 0 and charged == incarnation and now >= opened_us then
            span_us, low, before, floor_us, floor_before =
                noted(limit, level, span_us, low, before, floor_us, floor_before)
            local back = returnable(limit, level, opened_us, amount, mark, amount - actual,
                span_us, low, before, floor_us, floor_before, returned)
            if back == level then
                note_change(key, false, 0)
            elseif back > 0 then
                local n = limit[4]
                level = level - back
                local drained = -level % n
                put(key, limit, (level + drained) / n, drained, incarnation, span_us, max(0, low - back),
                    max(0, before - back), floor_us, floor_before, returned + ceil(back / n))
            end
        end
    end
    local ended = ENDED .. string.sub(record, 2, 31) .. program[d + 3] .. NONE
    redis.call('SET', KEYS[program[d + 1]], ended, 'KEEPTTL')
    values[program[d + 1]] = ended
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
