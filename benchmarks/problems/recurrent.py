"""A character model after DeepOBS' tolstoi_char_rnn.

Embedding of 128, two LSTM layers of 128, dropout 0.2, stretches of 50 characters.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.problems.problem import Problem, Scale

SYMBOLS, WIDTH, LENGTH = 65, 128, 50


class CharLSTM(nn.Module):
    """Characters [N, T] to logits [N, T, symbols]."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.characters = nn.Embedding(SYMBOLS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, characters: Tensor) -> Tensor:
        """Return the logits of the next character."""
        states, _ = self.lstm(self.characters(characters))
        found: Tensor = self.head(states)
        return found


CHAR_LSTM = Problem(
    "char_lstm",
    CharLSTM,
    lambda n, s, d: d.text(n, s.length or LENGTH, SYMBOLS, characters=True),
    50,
    loss="token_cross_entropy",
    learning_rate=0.1,
)
