-- name: ended_tokens
-- Of what is held, a token with a role, a project, a node's keys and a sign-in, the numbers of those that were revoked,
-- expired or are another's now, whose node has other keys, or that are signed out.
SELECT held.number
FROM unnest(CAST(:ids AS text[]), CAST(:roles AS text[]), CAST(:projects AS text[]), CAST(:keys AS text[]),
            CAST(:sign_ins AS text[])) WITH ORDINALITY AS held (id, role, project, keys, sign_in, number)
WHERE NOT EXISTS (
    SELECT FROM tokens t
    WHERE t.id = held.id AND t.role = held.role AND t.project IS NOT DISTINCT FROM held.project
        AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())
        AND (t.purpose IS DISTINCT FROM 'node' OR held.keys IS NOT DISTINCT FROM (
            SELECT coalesce(string_agg(k.key, ',' ORDER BY k.key COLLATE "C")
                FILTER (WHERE k.revoked_at IS NULL AND k.expires_at > now()), '')
            FROM node_keys AS k WHERE k.node_id = t.subject HAVING count(*) > 0))
        AND (held.sign_in IS NULL OR EXISTS (
            SELECT FROM sign_ins s
            WHERE s.id = held.sign_in AND s.token_id = t.id AND s.ended_at IS NULL AND s.expires_at > now())))

-- name: touch_tokens
-- Notes that tokens were used, unless it was noted within so many seconds or somebody notes it now.
UPDATE tokens SET last_used_at = now()
WHERE id IN (
    SELECT id FROM tokens
    WHERE id = ANY(:ids) AND (last_used_at IS NULL OR last_used_at < now() - make_interval(secs => :precision_s))
    FOR NO KEY UPDATE SKIP LOCKED)
RETURNING id
