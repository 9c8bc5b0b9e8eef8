// The data of the page, which live.py and recorded.py write.

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
  examples?: undefined;
}

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

export type Language = WordLanguage | CharacterLanguage;

interface Vocabulary {
  lowercase: boolean;
  words: string[];
  /** The ids of the words, computed when needed. */
  ids?: Map<string, number>;
}

export interface WordLanguage extends Vocabulary {
  unit: "word";
  joins: "text" | "elisions";
  /** The regular expression of a token; `{name}` stands for a class of characters. */
  pattern: string;
  classes: Record<string, string>;
  /** The pattern with its classes, compiled when needed. */
  expression?: RegExp;
}

export interface CharacterLanguage extends Vocabulary {
  unit: "character";
  joins: "characters";
}

export interface ArrayLayout {
  name: string;
  shape: number[];
}

export interface Checkpoint {
  step: number;
  /** All arrays in the order of the layout, encoded as text. */
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
  rows: string[];
  columns: string[];
  links: Cell[] | null;
  sides: Partial<Record<Side, PackedWeights>>;
}

export type Side = "decoder" | "encoder";

/** [layers, heads, targets, sources]. */
export type WeightsShape = [number, number, number, number];

export interface PackedWeights {
  shape: WeightsShape;
  weights: string;
  low: number;
  high: number;
}
