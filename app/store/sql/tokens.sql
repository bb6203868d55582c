-- name: ended_tokens
-- Tokens, of those that are held with a role and a project, that were revoked, expired or are another's now.
SELECT held.id
FROM unnest(CAST(:ids AS text[]), CAST(:roles AS text[]), CAST(:projects AS text[])) AS held (id, role, project)
WHERE NOT EXISTS (
    SELECT FROM tokens t
    WHERE t.id = held.id AND t.role = held.role AND t.project IS NOT DISTINCT FROM held.project
        AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now()))

-- name: touch_tokens
-- Notes that tokens were used, unless it was noted within so many seconds or somebody notes it now.
UPDATE tokens SET last_used_at = now()
WHERE id IN (
    SELECT id FROM tokens
    WHERE id = ANY(:ids) AND (last_used_at IS NULL OR last_used_at < now() - make_interval(secs => :precision_s))
    FOR NO KEY UPDATE SKIP LOCKED)
RETURNING id
