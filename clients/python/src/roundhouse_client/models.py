"""What the services answer, as they document it.

The models are generated from their OpenAPI documents. Fields that a later version adds are kept in
`model_extra`.
"""

from typing import Any, TypeAlias

from ._generated.engine import *  # noqa: F403
from ._generated.engine import (
    ApprovalPreviewAddress,
    ApprovalPreviewCommand,
    ApprovalPreviewDiff,
    ApprovalPreviewText,
    MessageBlockDocument,
    MessageBlockImage,
    MessageBlockText,
    MessageBlockToolResult,
    MessageBlockToolUse,
)
from ._generated.orchestrator import *  # noqa: F403

ApprovalPreview: TypeAlias = (
    ApprovalPreviewDiff
    | ApprovalPreviewCommand
    | ApprovalPreviewAddress
    | ApprovalPreviewText
    | dict[str, Any]
)
"""What a tool call would do; a `dict` is of a kind that this version does not know."""

MessageBlock: TypeAlias = (
    MessageBlockText
    | MessageBlockImage
    | MessageBlockDocument
    | MessageBlockToolUse
    | MessageBlockToolResult
    | dict[str, Any]
)
"""A part of a message; a `dict` is of a type that this version does not know."""
