"""A mark of what a turn sent, by which the next one knows whether it begins with that; also of a list's last turn."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table responses add column prefix_mark bytea")
    op.execute("alter table conversations add column prefix_mark bytea")


def downgrade() -> None:
    op.execute("alter table conversations drop column prefix_mark")
    op.execute("alter table responses drop column prefix_mark")
