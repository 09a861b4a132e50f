-- Reads counters from the values of a call, and writes the values whose counters changed. A value holds one record for
-- each limit: a head with the limit's name and the record's kind, a long name if the limit has one, and a body.

-- The counters that were read, by key * MANY + limit, and the keys with changed ones.
local counters, dirty = {}, {}
-- For each key the limit that was read last; by key * MANY + limit the one read before it; for each key the
-- end of the record that was found last. The first two form a list of the limits of each key.
local newest, before, ends = {}, {}, {}

-- Finds a limit's record in a value, from a place on. Returns its kind, where its body begins, and where the
-- next record begins; false if the value has an unknown format; nothing if it has no such record.
local function find(value, limit, place)
    local size = #value
    while place <= size do
        local head = byte(value, place)
        local kind = head % 16
        local name = (head - kind) / 16
        local body = place + 1 + (name == NAMED and 8 or 0)
        local length = byte(SIZES, kind + 1)
        if not length or body + length - 1 > size then
            return false
        end
        if name == limit.name and byte(OWNERS, kind + 1) == limit.algorithm
            and (name < NAMED or string.sub(value, place + 1, place + 8) == limit.long_name) then
            return kind, body, body + length
        end
        place = body + length
    end
end

-- Returns the counter of a key and a limit, or false if its state has an unknown format.
local function counter_of(key, own_key, l)
    local counter = counters[key * MANY + l]
    if counter == nil then
        local limit, value = limits[l], values[key]
        local kind, body
        if value then
            -- Records usually lie in the order in which a call names its counters, so the search goes on
            -- after the last one.
            local place, after = ends[key] or 1, nil
            kind, body, after = find(value, limit, place)
            if kind == nil and place > 1 then
                kind, body, after = find(value, limit, 1)
            end
            ends[key] = after or place
        end
        -- The shard lost its data and there is no record: the counter may have been full, so it counts as used up.
        if kind == nil and lost_us > 0 then
            counter = limit.module.used_up(limit, lost_us, KEYS[keys_read + own_key])
        else
            counter = kind ~= false and limit.module.load(value, kind, body, limit, KEYS[keys_read + own_key]) or false
        end
        if counter then
            counter.body = body or false
        end
        counters[key * MANY + l] = counter
        before[key * MANY + l], newest[key] = newest[key], l
    end
    return counter
end

-- Returns the records of a value that this call did not change, and the us until the last of them is irrelevant.
local function others(value, key)
    local kept, longest_us = '', 0
    local changed_at = {}
    local l = newest[key]
    while l do
        local counter = counters[key * MANY + l]
        if counter and counter.changed and counter.body then
            changed_at[counter.body] = true
        end
        l = before[key * MANY + l]
    end
    local place, length = 1, #value
    while place <= length do
        local head = byte(value, place)
        local kind = head % 16
        local body = place + 1 + ((head - kind) / 16 == NAMED and 8 or 0)
        local after = body + (byte(SIZES, kind + 1) or length)
        if after > length + 1 then
            -- The rest has an unknown format. It stays, and disturbs only callers that need a counter in it.
            return kept .. string.sub(value, place), longest_us
        end
        if not changed_at[body] then
            local until_us = module(byte(OWNERS, kind + 1)).until_us(value, kind, body)
            if until_us > 0 then
                kept = kept .. string.sub(value, place, after - 1)
                longest_us = max(longest_us, until_us)
            end
        end
        place = after
    end
    return kept, longest_us
end

-- Writes a value, with its changed records packed again.
local function store(key)
    local old, value, longest_us, replaced = values[key], '', 0, 0
    local l = newest[key]
    while l do
        local counter, limit = counters[key * MANY + l], limits[l]
        if counter and counter.changed then
            local head_length = limit.name == NAMED and 9 or 1
            if counter.body then
                local kind = byte(old, counter.body - head_length) % 16
                replaced = replaced + head_length + byte(SIZES, kind + 1)
            end
            local kind, body, until_us = limit.module.pack(counter, limit)
            if kind then
                local head = string.char(limit.name * 16 + kind)
                if limit.name == NAMED then
                    head = head .. limit.long_name
                end
                value = head .. body .. value
                longest_us = until_us > longest_us and until_us or longest_us
            end
        end
        l = before[key * MANY + l]
    end
    -- Usually every record of the value has changed, and there is no rest to keep.
    if old and replaced < #old then
        local kept, until_us = others(old, key)
        value, longest_us = kept .. value, max(longest_us, until_us)
    end
    keep(KEYS[key], value ~= '' and value, longest_us)
end
