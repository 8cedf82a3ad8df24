//! The people and places of a corpus. First names, surnames and the parts of places' names repeat; full names are
//! unique.

use std::collections::HashSet;

use super::rng::SeededRng;

/// A person or place that facts are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The full name.
    pub(crate) name: String,
    /// The pronoun that can replace the name; `None` for a place.
    pub(crate) pronoun: Option<&'static str>,
}

impl Subject {
    /// Returns a short reference to a subject that was just named: the pronoun or the first part of the name.
    pub(crate) fn short_reference(&self, rng: &mut SeededRng) -> &str {
        let first = self.name.split(' ').next().unwrap_or_default();
        self.pronoun.filter(|_| rng.chance(50)).unwrap_or(first)
    }
}

/// Draws subjects with unique names.
#[derive(Debug, Default)]
pub(crate) struct NameGenerator(HashSet<String>);

impl NameGenerator {
    /// Returns a new person.
    pub(crate) fn person(&mut self, rng: &mut SeededRng) -> Subject {
        let (first_names, pronoun) = if rng.chance(50) { (FEMALE_NAMES, "She") } else { (MALE_NAMES, "He") };
        let name = self.unique_name(rng, |rng| {
            format!("{} {}", rng.pick_from_list(first_names), rng.pick_from_list(SURNAMES))
        });
        Subject { name, pronoun: Some(pronoun) }
    }

    /// Returns a new place to eat or to stay.
    pub(crate) fn place(&mut self, rng: &mut SeededRng) -> Subject {
        let name = self.unique_name(rng, |rng| {
            format!("{} {}", rng.pick_from_list(PLACE_TYPES), rng.pick_from_list(PLACE_NAMES))
        });
        Subject { name, pronoun: None }
    }

    fn unique_name(&mut self, rng: &mut SeededRng, mut draw: impl FnMut(&mut SeededRng) -> String) -> String {
        let mut name = draw(rng);
        // If all names are used, which no corpus size comes near, a number makes them unique.
        let mut tries = 0;
        while !self.0.insert(name.clone()) {
            tries += 1;
            name = if tries < 1_000 { draw(rng) } else { format!("{} {tries}", draw(rng)) };
        }
        name
    }
}

const FEMALE_NAMES: &str = "Mara, Ines, Tilda, Noor, Aiko, Greta, Paloma, Zofia, Leila, Briar, Hanna, Odile, Saskia, Wanda, \
    Yara, Carmen, Dagny, Elif, Fiona, Gwen, Helga, Imani, Jolene, Katya, Lucia, Mina, Nadia, Olga, \
    Priya, Quinn, Rosa, Selma, Tamar, Ulla, Vera, Willa, Ximena, Yvonne, Zelda, Anouk, Bianca, \
    Celeste, Delia, Esther, Freya, Giulia, Hedda, Irina, Judith, Keiko, Linnea, Magda, Nerys, \
    Oksana, Petra, Ramona, Sunniva, Thea, Ursula, Vivian, Winona, Agnes, Beatriz, Clara, Dunja, \
    Elodie, Fatima, Ghislaine, Henrike, Isolde, Jasmin, Kirsten, Lorena, Maeve, Nanami, Orla, Pilar, \
    Roswitha";
const MALE_NAMES: &str = "Jonas, Tomas, Idris, Bram, Kenji, Rafael, Otto, Dmitri, Farid, Gustav, Henrik, Ivo, Jamal, \
    Klaus, Luca, Matteo, Nils, Omar, Pavel, Quentin, Ruben, Stefan, Tariq, Ulrich, Viktor, Wendel, \
    Xavier, Yusuf, Zoltan, Anton, Boris, Cedric, Dario, Emil, Felipe, Goran, Hugo, Ismael, Joachim, \
    Kasper, Leon, Milan, Nestor, Oskar, Piotr, Ragnar, Sandor, Thibault, Umberto, Valentin, Walter, \
    Arvid, Benedikt, Caspian, Declan, Enzo, Florian, Gideon, Hamza, Isidor, Jerome, Kofi, Lorenzo, \
    Magnus, Nikolai, Osvaldo, Percival, Rashid, Silvio, Tobias, Urban, Vincent, Wolfram, Yannick, \
    Zachary, Alistair";
const SURNAMES: &str = "Lindqvist, Okafor, Marchetti, Novak, Haddad, Tanaka, Bergmann, Castellanos, Dubois, Eriksen, \
    Fontaine, Grabowski, Hollander, Ivanova, Jansen, Kowalczyk, Lombardi, Moreau, Nakamura, Olsen, \
    Petrov, Quiroga, Rossi, Schreiber, Takahashi, Ullmann, Vasquez, Wexler, Yamamoto, Zimmer, \
    Abernathy, Brandt, Calloway, Dragomir, Eastwick, Farrow, Giordano, Hathaway, Ibarra, Jakobsen, \
    Keller, Lachance, Mbeki, Nyström, Oduya, Papadakis, Quist, Renner, Sokolov, Thornbury, \
    Underhill, Vandermeer, Whitlock, Xenakis, Yilmaz, Zapata, Aalto, Bianchi, Cordero, Devereux, \
    Engel, Ferreira, Gallagher, Hoffmann, Inoue, Jovanovic, Kapoor, Laurent, Mendoza, Nakata, \
    Ortega, Pellegrini, Rasmussen, Santoro, Teixeira, Uribe, Villanueva, Winterbourne, Yardley, \
    Zielinski, Ashdown, Bellweather, Carmichael, Dahlgren, Espinoza, Fairbanks, Gutierrez, \
    Halvorsen, Iversen, Juarez, Kristensen, Lefebvre, Macallister, Nordstrom, Oyelaran, Pritchard, \
    Rutherford, Stavros, Trevelyan, Voss";
const PLACE_TYPES: &str =
    "Café, Hotel, Trattoria, Brasserie, Pension, Bistro, Taverna, Osteria, Auberge, Gasthaus";
const PLACE_NAMES: &str = "Lumen, Brisa, Solana, Kestrel, Marisol, Aurora, Belvedere, Corvina, Delfino, Esmeralda, \
    Fiorella, Girasole, Horizonte, Isabella, Jacaranda, Karavel, Lavanda, Mirador, Nocturne, \
    Oleander, Paradiso, Quetzal, Rivoli, Saffrano, Tramonto, Umbria, Valencia, Wisteria, Xanadu, \
    Yggdrasil, Zephyr, Amaranta, Bellaria, Cipresso, Donatella, Estrella, Fenice, Gloriosa, \
    Hesperia, Imperiale, Juniper, Kalliope, Lorelei, Montebello, Nautilus, Orfeo, Pergola, \
    Rosmarino, Serafina, Tivoli";
