-- Reads counters from the values of a call, and writes the values whose counters changed. A value holds one record for
-- each limit: a head with the limit's name and the record's kind, a long name if the limit has one, and a body.

-- The counters that were read, by key * MANY + limit, and the keys with changed ones.
local counters, dirty = {}, {}
-- For each key: the records of its value, and the counters that were read, in order.
local split, of_key = {}, {}

-- Splits a value into its records: of each its name, owner, kind, where it begins, its body and what is behind it. From
-- `rest` on, the value has an unknown format. That part stays, and disturbs only callers that need a counter in it.
local function records_of(value)
    local records, size, from = { rest = 1 }, #value, 1
    while from <= size do
        local head = byte(value, from)
        local kind = head % 16
        local name = (head - kind) / 16
        local body = from + (name == NAMED and 9 or 1)
        local after = body + (byte(SIZES, kind + 1) or size)
        if after > size + 1 then
            return records
        end
        records[#records + 1] = { name, byte(OWNERS, kind + 1), kind, from, body, after }
        from, records.rest = after, after
    end
    return records
end

-- Returns the record of a limit.
local function record_of(value, records, limit)
    for i = 1, #records do
        local record = records[i]
        if record[1] == limit.name and record[2] == limit.algorithm
            and (limit.name < NAMED or string.sub(value, record[4] + 1, record[4] + 8) == limit.long_name) then
            return record
        end
    end
end

-- Returns the counter whose key, own key and limit program[p] and the next words give, or false if its state has an
-- unknown format; then its limit and its key.
local function counter_at(p)
    local key, l = program[p], program[p + 2]
    local counter, limit = counters[key * MANY + l], limits[l]
    if counter == nil then
        local value, own_key, records = values[key] or '', KEYS[keys_read + program[p + 1]], split[key]
        if not records then
            records = records_of(value)
            split[key], of_key[key] = records, {}
        end
        local record = record_of(value, records, limit)
        if record then
            counter = limit.module.load(value, record[3], record[5], limit, own_key)
        elseif records.rest > #value then
            -- If the shard lost its data, the counter may have been full, so it counts as used up.
            counter = limit.module.missing(limit, own_key)
        end
        counter = counter or false
        if counter then
            counter.record, counter.limit = record or false, limit
            of_key[key][#of_key[key] + 1] = counter
        end
        counters[key * MANY + l] = counter
    end
    return counter, limit, key
end

-- Writes a value: the records that did not change and still matter, the changed ones packed again, and the rest.
local function store(key)
    local old, records, kept, packed, longest_us = values[key] or '', split[key], '', '', 0
    for _, counter in ipairs(of_key[key]) do
        if counter.changed then
            local limit = counter.limit
            local kind, body, until_us = limit.module.pack(counter, limit)
            if kind then
                local long_name = limit.name == NAMED and limit.long_name or ''
                packed = packed .. string.char(limit.name * 16 + kind) .. long_name .. body
                longest_us = max(longest_us, until_us)
            end
            if counter.record then
                counter.record[3] = false
            end
        end
    end
    for _, record in ipairs(records) do
        local kind = record[3]
        local until_us = kind and module(record[2]).until_us(old, kind, record[5]) or 0
        if until_us > 0 then
            kept, longest_us = kept .. string.sub(old, record[4], record[6] - 1), max(longest_us, until_us)
        end
    end
    local value = kept .. packed .. string.sub(old, records.rest)
    keep(KEYS[key], value ~= '' and value, longest_us)
    -- What a fast path changed in this value before is written too.
    fresh[key] = nil
end
