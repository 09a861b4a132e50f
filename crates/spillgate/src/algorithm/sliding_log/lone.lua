-- The last decision of a call, if it is of one sliding log in its steady state, without a cell: the log
-- was written under the very numbers that are asked for, no clock is behind, and the few entries that
-- expired or matter for the answer lie in its first chunk. Most are of this kind, and get the same
-- answers as from sliding_log.lua, whose functions take longer to make than this to run.
--
-- Own key: the log's, as sliding_log.lua keeps it; written at once, for nothing is judged after it.

-- A record with its head, and the most entries that are looked at.
local RECORD, LOOKS = 50, 8
local BODY = '>I1I3I6I6I7I7I4I5I5I5I1'

local function chunk_of(text)
    local base_us, format = struct.unpack('>I7c5', text)
    local _, _, at_width, _, units_width = byte(format, 1, 5)
    return {
        text = text, base_us = base_us, format = format, size = (#text - 12) / (at_width + units_width - 96),
        at_width = at_width - 48, units_width = units_width - 48,
    }
end

local function entry(chunk, place)
    if place == 0 then
        return 0, 0
    end
    local at_us, through = struct.unpack(chunk.format, chunk.text,
        13 + (place - 1) * (chunk.at_width + chunk.units_width))
    return chunk.base_us + at_us, chunk.units_width == 0 and place or through
end

-- The decision at program[d]; whether it is of this kind.
local function lone(d)
    local key, own_key, l, cost = program[d + 2], KEYS[program[d + 3]], program[d + 4], program[d + 5]
    local value, most, period_us = values[key], program[l + 3], program[l + 4]
    if program[d] ~= 0 or program[d + 6] ~= 0 or cost == 0 or not value or #value ~= RECORD then
        return false
    end
    local kind, count, period_then_us, incarnation, shift_us, last_us, used, oldest, tail, first, place =
        struct.unpack(BODY, value)
    if kind ~= program[l + 1] * 16 + 5 or count ~= most or period_then_us ~= period_us or shift_us ~= 0
        or last_us >= now or now - last_us >= period_us or oldest ~= first then
        return false
    end
    local first_field, last_field = struct.pack('>I1I5', 0, first), struct.pack('>I1I5', 0, tail)
    local texts = redis.pcall('HMGET', own_key, first_field, last_field)
    if texts.err or not texts[1] or not texts[2] then
        return false
    end

    -- What has expired, and how long until as many units go as there are too many.
    local oldest_chunk = chunk_of(texts[1])
    local _, before = entry(oldest_chunk, place)
    local expired, at = 0, place + 1
    local at_us, through = now, before
    while at <= oldest_chunk.size and at <= place + LOOKS do
        at_us, through = entry(oldest_chunk, at)
        if at_us > now - period_us then
            break
        end
        expired, at = through - before, at + 1
    end
    if at > oldest_chunk.size or at > place + LOOKS then
        return false
    end
    place, used = at - 1, used - expired
    local fits = used + cost <= most
    local over = used + (fits and cost or 0) + cost - most
    local retry_us = 0
    if over > 0 and over <= used then
        if through - before - expired < over then
            return false
        end
        retry_us = at_us - now + period_us
    elseif over > used then
        return false
    end

    if fits then
        local chunk = first == tail and oldest_chunk or chunk_of(texts[2])
        local text, size, width = chunk.text, chunk.size, chunk.at_width + chunk.units_width
        if first == tail and place >= 8 and place * 2 >= size then
            -- A log that fits in one chunk stays in one: what has expired goes.
            if chunk.units_width > 0 then
                return false
            end
            text = string.sub(text, 1, 12) .. string.sub(text, 13 + place * width)
            size, place = size - place, 0
        end
        local units = size + 1
        if chunk.units_width > 0 then
            local _, so_far = entry(chunk, size)
            units = so_far + cost
        end
        if size == 0 or #text + width > 506 or now - chunk.base_us >= 256 ^ chunk.at_width
            or chunk.units_width == 0 and cost > 1
            or chunk.units_width > 0 and units >= 256 ^ chunk.units_width then
            return false
        end
        redis.call('HSET', own_key, last_field, text .. struct.pack(chunk.format, now - chunk.base_us, units))
        used, last_us = used + cost, now
        values[key] = struct.pack(BODY, kind, count, period_us, incarnation, 0, now, used, oldest, tail, first, place)
        local life = life_ms(period_us)
        redis.call('PEXPIRE', own_key, life)
        redis.call('SET', KEYS[key], values[key], 'PX', life)
    end
    out[o], out[o + 1], out[o + 2], out[o + 3] = fits and 1 or 0, used, retry_us, last_us - now + period_us
    return true
end
