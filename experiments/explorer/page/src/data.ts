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
  max_train_length: number | null; // length of the longest training sentence in tokens, if known
  layout: { name: string; shape: number[] }[];
  step: number; // training step of the checkpoint that the run translates with
  checkpoints: Checkpoint[];
  examples: Example[];
  sentences?: undefined;
}

/** A translator whose attention was recorded. */
export interface RecordedRun {
  name: string;
  summary: string;
  why: string | null; // why the page cannot run it; null for weights from a file
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
  pattern?: string; // for words: the regular expression of a token; `{name}` stands for a class of characters
  classes?: Record<string, string>;
}

export interface Checkpoint {
  step: number;
  arrays: string; // all arrays in the order of the layout: float32, gzip, base64
}

/** A target position and a source position. */
export type Cell = [number, number];

export interface Example {
  split: string;
  source: string;
  target: string;
  links: Cell[] | null; // the true alignment, if available
}

/** A sentence with recorded attention. */
export interface Sentence {
  source_text: string;
  target_text: string;
  reference: string; // the reference translation; empty if it is not available
  is_output: boolean; // whether the target is the output of the model, and not the reference
  rows: string[];
  columns: string[];
  links: Cell[] | null;
  sides: Partial<Record<Side, PackedWeights>>;
}

/** The decoder's attention to the source, or the encoder's self-attention. */
export type Side = "decoder" | "encoder";

/** Weights between `low` and `high`, rounded to 16 bits: uint16, gzip, base64. */
export interface PackedWeights {
  shape: [number, number, number, number]; // [layers, heads, targets, sources]
  weights: string;
  low: number;
  high: number;
}
