-- name: ended_tokens
-- Tokens, of those that are held with a role and a project, that were revoked, expired or are another's now.
SELECT held.id
FROM unnest(CAST(:ids AS text[]), CAST(:roles AS text[]), CAST(:projects AS text[])) AS held (id, role, project)
WHERE NOT EXISTS (
    SELECT FROM tokens t
    WHERE t.id = held.id AND t.role = held.role AND t.project IS NOT DISTINCT FROM held.project
        AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now()))
