"""Problems with recurrent layers: one parameter is used at every time step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.testing.problem import Batch, Problem, cross_entropy, features, text, token_cross_entropy


class Recurrent(nn.Module):
    """A recurrent layer and a linear head on its outputs, averaged over time."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        states = self.layer(x)[0]
        logits: Tensor = self.head(states).mean(1 if self.layer.batch_first else 0)
        return logits


class Packed(nn.Module):
    """An RNN over sequences of different lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RNN(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Logits [N, C] from the last state of each sequence."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.layer(packed)
        logits: Tensor = self.head(last[0])
        return logits


class CellLoop(nn.Module):
    """An ``nn.LSTMCell`` called once per time step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C] from the last state."""
        h = c = x.new_zeros(len(x), 5)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        logits: Tensor = self.head(h)
        return logits


class Characters(nn.Module):
    """A character model: embedding, two LSTM layers, a prediction at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(5, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [N, T, V]."""
        states, _ = self.lstm(self.emb(tokens))
        logits: Tensor = self.head(states)
        return logits


def ragged(n: int, g: torch.Generator) -> Batch:
    """Sequences [N, 5, 4] and their lengths, from 1 to 5."""
    x, lengths = torch.randn(n, 5, 4, generator=g), torch.randint(1, 6, (n,), generator=g)
    return (x, lengths), torch.randint(3, (n,), generator=g)


def time_first(n: int, g: torch.Generator) -> Batch:
    """Sequences [T, N, d] with T = 4."""
    return (torch.randn(4, n, 4, generator=g),), torch.randint(3, (n,), generator=g)


SEQUENCE = features(4, 4)
PROBLEMS = (
    Problem(
        "rnn", lambda: Recurrent(nn.RNN(4, 6, nonlinearity="relu")), time_first, cross_entropy, axes=(1,)
    ),
    Problem(
        "lstm",
        lambda: Recurrent(nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)),
        SEQUENCE,
        cross_entropy,
    ),
    Problem("gru", lambda: Recurrent(nn.GRU(4, 5, batch_first=True)), SEQUENCE, cross_entropy),
    Problem("rnn_packed", Packed, ragged, cross_entropy, note="packed rows are sorted by length"),
    Problem("lstm_cell", CellLoop, SEQUENCE, cross_entropy, note="a module used 4 times"),
    Problem("characters", Characters, text(5, 7), token_cross_entropy, random=True),
)
