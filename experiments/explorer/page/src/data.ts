// Types of the data of the page, which live.py and recorded.py write.

export interface PageData {
  runs: Run[];
}

export type Run = LiveRun | RecordedRun;

/** A recurrent translator that the page runs. */
export interface LiveRun {
  name: string;
  summary: string;
  shape: Shape;
  source: Language;
  target: Language;
  max_length: number;
  beam_size: number;
  length_penalty: number;
  /** Length of the longest training sentence in tokens, if known. */
  max_train_length: number | null;
  layout: ArrayLayout[];
  /** Training step of the checkpoint that the run translates with. */
  step: number;
  checkpoints: Checkpoint[];
  examples: Example[];
  sentences?: undefined;
}

/** A translator whose attention was recorded. */
export interface RecordedRun {
  name: string;
  summary: string;
  /** Why the page cannot run it; null for weights from a file. */
  why: string | null;
  sentences: Sentence[];
  checkpoints?: undefined;
}

/** Options of the model, from its config. */
export interface Shape {
  num_layers: number;
  num_decoder_layers: number;
  residual: boolean;
  layer_norm: boolean;
  attention: Attention | "none";
  attend_order: "before" | "after";
  input_feeding: boolean;
  tied_embeddings: boolean;
}

export type Attention = "additive" | "dot_product" | "scaled_dot_product" | "cosine" | "bilinear";

/** A vocabulary, and how text is split into tokens. */
export interface Language {
  unit: "word" | "character";
  joins: "text" | "elisions" | "characters";
  lowercase: boolean;
  words: string[];
  /** For words: the regular expression of a token; `{name}` stands for a class of characters. */
  pattern?: string;
  classes?: Record<string, string>;
}

export interface ArrayLayout {
  name: string;
  shape: number[];
}

export interface Checkpoint {
  step: number;
  /** All arrays in the order of the layout: float32, gzip, base64. */
  arrays: string;
}

/** A target position and a source position. */
export type Cell = [number, number];

export interface Example {
  split: string;
  source: string;
  target: string;
  /** The true alignment, if available. */
  links: Cell[] | null;
}

/** A sentence with recorded attention. */
export interface Sentence {
  source_text: string;
  target_text: string;
  /** The reference translation; empty if it is not available. */
  reference: string;
  /** Whether the target is the output of the model, and not the reference. */
  is_output: boolean;
  rows: string[];
  columns: string[];
  links: Cell[] | null;
  sides: Partial<Record<Side, PackedWeights>>;
}

/** The decoder's attention to the source, or the encoder's self-attention. */
export type Side = "decoder" | "encoder";

/** Weights between `low` and `high`, rounded to 16 bits: uint16, gzip, base64. */
export interface PackedWeights {
  /** [layers, heads, targets, sources]. */
  shape: [number, number, number, number];
  weights: string;
  low: number;
  high: number;
}
